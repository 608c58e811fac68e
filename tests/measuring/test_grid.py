"""Which cells there are, and in which order: the corners first, then what lies between."""

from __future__ import annotations

import pytest

from scalewise.errors import UserError
from scalewise.measuring.grid import Axes, grid, levels
from scalewise.strategies.mirrored import Mirrored
from scalewise.strategies.parameter_server import ParameterServer
from scalewise.strategies.single import Single

SINGLE, MIRRORED, SERVED = Single(), Mirrored(), ParameterServer(servers=2)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [0]),
        (2, [0, 0]),
        (3, [0, 1, 0]),
        (5, [0, 2, 1, 2, 0]),
        (12, [0, 3, 2, 3, 4, 1, 3, 4, 2, 3, 4, 0]),
    ],
)
def test_an_axis_is_halved_again_and_again(count: int, expected: list[int]) -> None:
    assert levels(count) == expected


def test_corners_come_first_and_devices_lie_beside_each_other() -> None:
    axes = Axes(["linear"], [SINGLE, MIRRORED], [1, 2, 4], [10, 20, 50])
    assert [(point.strategy.name, point.devices, point.batch) for point in grid(axes)] == [
        ("single", 1, 10),
        ("mirrored", 1, 10),
        ("mirrored", 4, 10),
        ("single", 1, 50),
        ("mirrored", 1, 50),
        ("mirrored", 4, 50),
        ("mirrored", 2, 10),
        ("single", 1, 20),
        ("mirrored", 1, 20),
        ("mirrored", 4, 20),
        ("mirrored", 2, 50),
        ("mirrored", 2, 20),
    ]


def test_every_workload_has_its_corners_before_any_is_refined() -> None:
    axes = Axes(["linear", "conv"], [SINGLE], [1], [10, 20, 50])
    assert [(point.workload, point.batch) for point in grid(axes)] == [
        ("linear", 10),
        ("linear", 50),
        ("conv", 10),
        ("conv", 50),
        ("linear", 20),
        ("conv", 20),
    ]


def test_single_has_one_device_whatever_the_others_are_given() -> None:
    points = grid(Axes(["linear"], [SINGLE, MIRRORED], [2, 4], [8]))
    assert [(point.strategy.name, point.devices) for point in points] == [
        ("single", 1),
        ("mirrored", 2),
        ("mirrored", 4),
    ]


def test_batches_per_device_grow_with_the_devices() -> None:
    points = grid(Axes(["linear"], [SINGLE, MIRRORED], [1, 4], [8], per_device=True))
    assert [(point.strategy.name, point.devices, point.batch) for point in points] == [
        ("single", 1, 8),
        ("mirrored", 1, 8),
        ("mirrored", 4, 32),
    ]


def test_links_join_hosts_and_servers() -> None:
    axes = Axes(["linear"], [SINGLE, MIRRORED, SERVED], [2], [8], hosts=[1, 2], links=["1gbit", "200mbit"])
    assert [(point.strategy.name, point.hosts, point.link) for point in grid(axes)] == [
        ("single", 1, None),
        ("mirrored", 1, None),
        ("mirrored", 2, "1gbit"),
        ("mirrored", 2, "200mbit"),
        ("parameter-server", 1, "1gbit"),
        ("parameter-server", 1, "200mbit"),
        ("parameter-server", 2, "1gbit"),
        ("parameter-server", 2, "200mbit"),
    ]


def test_a_server_has_a_link_also_where_all_workers_are_on_one_host() -> None:
    points = grid(Axes(["linear"], [MIRRORED, SERVED], [2], [8], links=["1gbit"]))
    assert [(point.strategy.name, point.link) for point in points] == [
        ("mirrored", None),
        ("parameter-server", "1gbit"),
    ]


def test_every_host_has_a_device() -> None:
    points = grid(Axes(["linear"], [MIRRORED], [1, 2], [8], hosts=[1, 2], links=["1gbit"]))
    assert [(point.devices, point.hosts) for point in points] == [(1, 1), (2, 1), (2, 2)]
    with pytest.raises(UserError, match="2 devices leave some of 4 hosts without one"):
        grid(Axes(["linear"], [MIRRORED], [1, 2], [8], hosts=[4], links=["1gbit"]))


def test_what_is_given_twice_is_measured_once() -> None:
    assert len(grid(Axes(["linear", "linear"], [MIRRORED, MIRRORED], [2, 2], [8, 8]))) == 1


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"devices": [1, 0]}, "--devices is '1,0'; it must be whole numbers from 1"),
        ({"batch": []}, "--batch is ''"),
        ({"batch": [-1], "per_device": True}, "--batch-per-device is '-1'"),
        ({"hosts": [2]}, "2 rehearsed hosts need the speed of their links; add --link 1gbit"),
        ({"links": ["1gbit"]}, "link '1gbit' joins rehearsed hosts; ask for them with --hosts 2"),
        ({"workloads": []}, "nothing to measure"),
    ],
)
def test_axes_without_sense_are_refused(axes: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Axes(**{"workloads": ["linear"], "strategies": [MIRRORED], "devices": [1], "batch": [8], **axes})  # type: ignore[arg-type]
