"""Tests of the assignment of CPU cores to ranks."""

from __future__ import annotations

import pytest

from scalewise.launch.cpu_cores import cores_for_rank, order_cores


def test_hardware_threads_of_one_core_come_last() -> None:
    assert order_cores({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}) == [0, 2, 1, 3]
    assert order_cores({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}) == [0, 1, 2, 3]
    assert order_cores({5: "5", 3: "3"}) == [3, 5]


@pytest.mark.parametrize(
    ("rank", "cores_per_device", "expected"),
    [(0, 1, [4]), (1, 1, [6]), (2, 1, [5]), (3, 1, [4]), (0, 2, [4, 6]), (1, 2, [4, 5]), (0, 9, [4, 5, 6])],
)
def test_ranks_take_cores_in_turn_and_start_over(rank: int, cores_per_device: int, expected: list[int]) -> None:
    assert cores_for_rank(rank, cores_per_device, [4, 6, 5]) == expected
