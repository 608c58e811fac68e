"""Cells of a grid and their order: the corners first, then the cells in between."""

from __future__ import annotations

from random import Random

import pytest

from scalewise.core.errors import UserError
from scalewise.core.statistics import Interval, interval_of
from scalewise.strategies.mirrored import Mirrored
from scalewise.strategies.parameter_server import ParameterServer
from scalewise.strategies.single import Single
from scalewise.sweep.grid import (
    Axes,
    Block,
    block_of,
    epoch_of,
    grid,
    interval_of_blocks,
    levels,
    phases_of,
    warm_up_of,
)

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
def test_an_axis_is_halved_recursively(count: int, expected: list[int]) -> None:
    assert levels(count) == expected


def test_corners_come_first_and_device_counts_are_adjacent() -> None:
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


def test_corners_of_every_workload_come_before_other_cells() -> None:
    axes = Axes(["linear", "conv"], [SINGLE], [1], [10, 20, 50])
    assert [(point.workload, point.batch) for point in grid(axes)] == [
        ("linear", 10),
        ("linear", 50),
        ("conv", 10),
        ("conv", 50),
        ("linear", 20),
        ("conv", 20),
    ]


def test_single_always_has_one_device() -> None:
    points = grid(Axes(["linear"], [SINGLE, MIRRORED], [2, 4], [8]))
    assert [(point.strategy.name, point.devices) for point in points] == [
        ("single", 1),
        ("mirrored", 2),
        ("mirrored", 4),
    ]


def test_the_global_batch_grows_with_the_devices_at_a_fixed_batch_per_device() -> None:
    points = grid(Axes(["linear"], [SINGLE, MIRRORED], [1, 4], [8], per_device=True))
    assert [(point.strategy.name, point.devices, point.batch) for point in points] == [
        ("single", 1, 8),
        ("mirrored", 1, 8),
        ("mirrored", 4, 32),
    ]


def test_links_apply_to_several_hosts_and_to_servers() -> None:
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


def test_servers_have_links_with_one_worker_host() -> None:
    points = grid(Axes(["linear"], [MIRRORED, SERVED], [2], [8], links=["1gbit"]))
    assert [(point.strategy.name, point.link) for point in points] == [
        ("mirrored", None),
        ("parameter-server", "1gbit"),
    ]


def test_every_host_has_a_device() -> None:
    points = grid(Axes(["linear"], [MIRRORED], [1, 2], [8], hosts=[1, 2], links=["1gbit"]))
    assert [(point.devices, point.hosts) for point in points] == [(1, 1), (2, 1), (2, 2)]
    with pytest.raises(UserError, match="--devices 2 is less than --hosts 4"):
        grid(Axes(["linear"], [MIRRORED], [1, 2], [8], hosts=[4], links=["1gbit"]))


def test_duplicate_values_are_measured_once() -> None:
    assert len(grid(Axes(["linear", "linear"], [MIRRORED, MIRRORED], [2, 2], [8, 8]))) == 1


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"devices": [1, 0]}, "--devices is '1,0'; give whole numbers of at least 1"),
        ({"batch": []}, "--batch is ''"),
        ({"batch": [-1], "per_device": True}, "--batch-per-device is '-1'"),
        ({"hosts": [2]}, "--hosts 2 emulates hosts, which need a link speed; add --link 1gbit"),
        ({"links": ["1gbit"]}, "--link 1gbit connects emulated hosts; add --hosts 2"),
        ({"workloads": []}, "nothing to measure"),
        ({"strategies": [SINGLE], "devices": [2]}, "single runs on one device, but --devices is 2; use --devices 1"),
    ],
)
def test_invalid_axes_are_refused(axes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Axes(**{"workloads": ["linear"], "strategies": [MIRRORED], "devices": [1], "batch": [8], **axes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "graph", "expected"),
    [
        ([0.9, 0.3, 0.1, 0.1, 0.1, 0.1], False, 3),
        ([0.03, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01], False, 3),
        ([0.001] * 200, False, 50),
        ([0.001] * 20, False, 10),
        ([1.0] * 20, True, 6),
        ([5.0, 5.0, 5.0], False, 1),
        ([5.0], False, 0),
    ],
)
def test_the_warm_up_is_three_steps_or_a_twentieth_of_a_second_but_at_most_half(
    seconds: list[float], graph: bool, expected: int
) -> None:
    assert warm_up_of(seconds, graph) == expected


def test_steps_are_sorted_by_their_position_in_the_epoch() -> None:
    """An epoch of 10 samples in batches of 4 has two whole steps and a short one."""
    steps = [9.0, 8.0, 1.0, 4.0, 3.0, 1.5, 4.5, 3.5]
    block = block_of(steps, [18.5, 9.0], samples=10, batch=4)
    assert block.seconds == [4.0, 3.0, 4.5, 3.5]
    assert block.short == [1.0, 1.5]
    assert block.first == [4.0, 4.5]
    assert block.between == [0.5, 0.5]


def test_an_epoch_includes_the_time_between_its_steps() -> None:
    block = Block([2.0, 2.0, 2.0], short=[0.5], first=[2.4], between=[0.3])
    assert epoch_of([block], samples=14, batch=4) == pytest.approx(3 * 2.0 + 0.5 + (2.4 - 2.0) + 0.3)
    assert epoch_of([Block([2.0, 2.0, 2.2])], samples=12, batch=4) == 6.0
    assert epoch_of([Block([2.0], first=[2.0], between=[0.1])], samples=4, batch=4) == 2.1
    assert epoch_of([Block([2.0], epochs=[7.0, 9.0])], samples=4, batch=4) == 8.0


def test_an_epoch_takes_no_less_than_its_steps() -> None:
    """First steps may be faster; with two steps per epoch, the median already includes the first one."""
    quick_start = Block([1.0, 2.0, 2.0, 1.0, 2.0, 2.0], first=[1.0, 1.0])
    assert epoch_of([quick_start], samples=12, batch=4) == 6.0
    for first in (1.0, 2.0):
        pair = Block([1.0, 2.0, 1.0, 2.0], first=[first, first])
        assert epoch_of([pair], samples=8, batch=4) == 3.0


def test_phases_sum_to_the_step() -> None:
    blocks = [
        Block([1.0] * 3, phases={"update": 0.25, "forward": 0.75}),
        Block([2.0], phases={"update": 1.0, "forward": 1.0}),
    ]
    phases = phases_of(blocks, 1.0)
    assert list(phases) == ["forward", "update"]
    assert phases == pytest.approx({"forward": 3.25 / 5, "update": 1.75 / 5})
    assert phases_of([Block([1.0])], 1.0) == {}


def test_the_interval_is_students_t_over_the_medians_of_blocks() -> None:
    """The blocks have medians 99, 100 and 104; Student's t with two degrees of freedom is 4.303."""
    blocks = [[99.0] * 50, [100.0] * 3, [104.0] * 20]
    reach = 4.303 * 7**0.5 / 3**0.5
    interval = interval_of_blocks(blocks)
    assert (interval.low, interval.high) == pytest.approx((101 - reach, 101 + reach))
    assert (interval.median, interval.n) == (99.0, 73)


def test_the_interval_contains_its_median() -> None:
    interval = interval_of_blocks([[1.0] * 100, [2.0], [2.01], [1.99], [2.0], [2.0], [2.0], [2.0]])
    assert interval.low == interval.median == 1.0 < interval.high


def test_the_interval_is_no_narrower_than_the_noise_of_the_steps_allows() -> None:
    noisy = [90.0, 95.0, 100.0, 105.0, 110.0]
    assert interval_of_blocks([noisy] * 5).width == pytest.approx(2 * 1.3 * 1.253 * 1.483 * 0.05 / 25**0.5)
    assert interval_of_blocks([[100.0] * 5] * 5).width == 0.0


def test_correlated_blocks_widen_the_interval() -> None:
    levels = [1.00, 1.01, 1.02, 1.03, 1.04, 1.05]
    mixed = [1.02, 1.05, 1.00, 1.04, 1.01, 1.03]
    correlated, independent = (interval_of_blocks([[level] for level in blocks]) for blocks in (levels, mixed))
    assert correlated.width > 1.5 * independent.width
    assert independent.width == pytest.approx(2 * 2.571 * 0.0187083 / 6**0.5 / 1.025, rel=1e-4)


def test_intervals_of_very_few_steps() -> None:
    assert interval_of_blocks([[3.0], [], []]) == Interval(3.0, 3.0, 3.0, 1)
    wide = interval_of_blocks([[3.0], [1.0], []])
    assert (wide.median, wide.low, wide.n) == (2.0, 0.0, 2)
    assert wide.high == pytest.approx(2 + 12.706)
    assert interval_of_blocks([]).n == 0


def test_95_percent_of_intervals_contain_the_median_if_blocks_vary() -> None:
    """Blocks vary by 1% and steps by 2%; an interval that ignores blocks contains the median less than 80 times."""
    random = Random(1)
    hits = plain_hits = 0
    for _ in range(400):
        blocks = []
        for _ in range(5):
            pace = random.gauss(1.0, 0.01)
            blocks.append([pace * random.gauss(1.0, 0.02) for _ in range(20)])
        interval = interval_of_blocks(blocks)
        hits += interval.low <= 1.0 <= interval.high
        simple = interval_of([step for block in blocks for step in block])
        plain_hits += simple.low <= 1.0 <= simple.high
    assert 0.93 <= hits / 400 <= 0.98
    assert plain_hits / 400 < 0.80
