"""Tests of the validation of placements."""

from __future__ import annotations

from typing import Any

import pytest

from scalewise.core.errors import UserError
from scalewise.launch.cpu_cores import allowed_cores
from scalewise.launch.placement import Placement, parse_slow


def test_slow_ranks_are_parsed() -> None:
    assert parse_slow(["1=0.5", "2=0.25"]) == {1: 0.5, 2: 0.25}


@pytest.mark.parametrize("text", ["1", "one=0.5", "1=half", "=0.5", ""])
def test_an_invalid_slow_rank_is_quoted(text: str) -> None:
    with pytest.raises(UserError, match=f"cannot read slow rank '{text}'; write RANK=SHARE, for example 1=0.5"):
        parse_slow([text])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 0}, "devices cannot be 0; valid: 1 or more"),
        ({"hosts": 9, "link": "1gbit"}, "hosts cannot be 9; valid: 1 to 8"),
        ({"servers": 1000}, "servers cannot be 1000; valid: 1 to 32"),
        ({"device_kind": "metal"}, "unknown device kind 'metal'; valid: cpu, cuda, slice, auto"),
        ({"timeout_seconds": 0}, "a timeout of 0 s is not possible; valid: above 0, up to 1,000,000 s"),
        ({"timeout_seconds": float("nan")}, "a timeout of nan s is not possible"),
        ({"link": "1gbit"}, "link '1gbit' needs emulated hosts; add --hosts (2 to 8)"),
        ({"devices": 4, "hosts": 2, "link": "fast"}, "cannot read link 'fast'"),
        ({"devices": 2, "hosts": 3, "link": "1gbit"}, "2 devices are too few for 3 hosts; valid: 3 or more"),
        ({"devices": 2, "hosts": 2, "link": "1gbit", "device_kind": "cuda"}, "use --device-kind cpu or slice"),
        ({"devices": 2, "slow": {2: 0.5}}, "cannot slow down rank 2, which does not exist; valid: 0 to 1"),
        ({"devices": 2, "slow": {1: 1.5}}, "cannot slow down rank 1 to a share of 1.5; valid: 0.01 to 1"),
        ({"slow": {0: 0.5}, "device_kind": "cuda"}, "only cpu ranks can be slowed down, not 'cuda'"),
        ({"slice_percent": 25, "device_kind": "cpu"}, "--slice-percent has no effect with --device-kind cpu"),
        ({"slice_percent": 101, "device_kind": "slice"}, "slice percent cannot be 101; valid: 1 to 100"),
    ],
)
def test_an_error_names_the_value_and_the_valid_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        Placement(**options)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("devices", "hosts", "expected"),
    [(4, 2, [0, 0, 1, 1]), (3, 2, [0, 0, 1]), (5, 3, [0, 0, 1, 1, 2]), (2, 1, [0, 0]), (2, 2, [0, 1])],
)
def test_neighbouring_ranks_share_a_host(devices: int, hosts: int, expected: list[int]) -> None:
    placement = Placement(devices, "cpu", hosts, "1gbit" if hosts > 1 else None)
    assert [placement.host_of(rank) for rank in range(devices)] == expected


def test_more_cpu_ranks_than_cores_are_marked_as_oversubscribed() -> None:
    cores = len(allowed_cores())
    assert not Placement(cores, "cpu").oversubscribed
    assert Placement(cores + 1, "cpu").oversubscribed
    assert Placement(1, "cpu", cores_per_device=cores + 1).oversubscribed
    assert not Placement(cores + 1, "cuda").oversubscribed
