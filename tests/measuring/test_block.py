"""What blocks of steps say: which steps count, how sure the median is, what an epoch takes."""

from __future__ import annotations

from random import Random

import pytest

from scalewise.measuring.block import Block, cut, epoch_of, interval_of_blocks, phases_of, warm_up_of
from scalewise.results.statistics import Interval, interval_of


@pytest.mark.parametrize(
    ("seconds", "graph", "expected"),
    [
        ([0.9, 0.3, 0.1, 0.1, 0.1, 0.1], False, 2),
        ([0.03, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01], False, 3),
        ([0.001] * 200, False, 50),
        ([0.001] * 20, False, 10),
        ([1.0] * 20, True, 6),
        ([5.0, 5.0, 5.0], False, 1),
        ([5.0], False, 0),
    ],
)
def test_the_warm_up_is_two_steps_or_a_twentieth_of_a_second_but_at_most_half(
    seconds: list[float], graph: bool, expected: int
) -> None:
    assert warm_up_of(seconds, graph) == expected


def test_steps_are_told_apart_by_where_they_lie_in_their_epoch() -> None:
    """10 samples in batches of 4: two whole ones and a short one."""
    steps = [9.0, 8.0, 1.0, 4.0, 3.0, 1.5, 4.5, 3.5]
    block = cut(steps, [18.5, 9.0], samples=10, batch=4)
    assert block.seconds == [4.0, 3.0, 4.5, 3.5]
    assert block.short == [1.0, 1.5]
    assert block.first == [4.0, 4.5]
    assert block.between == [0.5, 0.5]


def test_an_epoch_is_its_steps_and_what_was_seen_beside_them() -> None:
    block = Block([2.0, 2.0, 2.0], short=[0.5], first=[2.4], between=[0.3])
    assert epoch_of([block], samples=14, batch=4) == pytest.approx(3 * 2.0 + 0.5 + (2.4 - 2.0) + 0.3)
    assert epoch_of([Block([2.0, 2.0, 2.2])], samples=12, batch=4) == 6.0
    assert epoch_of([Block([2.0], first=[2.0], between=[0.1])], samples=4, batch=4) == 2.1
    assert epoch_of([Block([2.0], epochs=[7.0, 9.0])], samples=4, batch=4) == 8.0


def test_an_epoch_costs_no_less_than_its_steps() -> None:
    """Steps that start an epoch may be the quicker ones; of two steps the median knows of both."""
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
    found = phases_of(blocks, 1.0)
    assert list(found) == ["forward", "update"]
    assert found == pytest.approx({"forward": 3.25 / 5, "update": 1.75 / 5})
    assert phases_of([Block([1.0])], 1.0) == {}


def test_blocks_that_agree_are_as_good_as_one() -> None:
    values = [100 + step * 7 % 31 for step in range(90)]
    blocks = [values[start::3] for start in range(3)]
    assert interval_of_blocks(blocks).width <= 1.2 * interval_of(values).width


def test_blocks_that_differ_widen_the_interval() -> None:
    """30 steps say 100, then 30 say 110: the truth is not known to a percent."""
    blocks = [[100.0 + number / 100 for number in range(30)], [110.0 + number / 100 for number in range(30)]]
    assert interval_of([step for block in blocks for step in block]).width < 0.11
    found = interval_of_blocks(blocks)
    assert (found.low, found.high) == (100.0, 110.29)


def test_too_little_is_said_as_it_is() -> None:
    assert interval_of_blocks([[3.0], [1.0], []]) == Interval(2.0, 1.0, 3.0, 2)
    assert interval_of_blocks([]).n == 0


def test_95_percent_of_intervals_hold_the_median_although_the_machine_wavers() -> None:
    """Blocks of 20 steps, each block 1 % off, each step 2 %: plain order statistics would be right 8 times of 10."""
    random = Random(1)
    held = plain = 0
    for _ in range(400):
        blocks = []
        for _ in range(10):
            pace = random.gauss(1.0, 0.01)
            blocks.append([pace * random.gauss(1.0, 0.02) for _ in range(20)])
        found = interval_of_blocks(blocks)
        held += found.low <= 1.0 <= found.high
        simple = interval_of([step for block in blocks for step in block])
        plain += simple.low <= 1.0 <= simple.high
    assert 0.90 <= held / 400 <= 0.99
    assert plain / 400 < 0.80
