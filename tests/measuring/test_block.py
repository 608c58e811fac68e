"""What blocks of steps say: which steps count, how sure the median is, what an epoch takes."""

from __future__ import annotations

from random import Random

import pytest

from scalewise.measuring.block import Block, cut, epoch_of, interval_of_blocks, phases_of, warm_up_of
from scalewise.results.statistics import Interval, interval_of


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


def test_the_interval_is_students_t_over_the_medians_of_blocks() -> None:
    """Three looks at 99, 100 and 104, whatever the number of their steps: t of two degrees is 4.303."""
    blocks = [[99.0] * 50, [100.0] * 3, [104.0] * 20]
    reach = 4.303 * 7**0.5 / 3**0.5
    found = interval_of_blocks(blocks)
    assert (found.low, found.high) == pytest.approx((101 - reach, 101 + reach))
    assert (found.median, found.n) == (99.0, 73)


def test_the_interval_holds_its_own_median() -> None:
    found = interval_of_blocks([[1.0] * 100, [2.0], [2.01], [1.99], [2.0], [2.0], [2.0], [2.0]])
    assert found.low == found.median == 1.0 < found.high


def test_blocks_that_agree_by_chance_are_no_surer_than_their_steps() -> None:
    noisy = [90.0, 95.0, 100.0, 105.0, 110.0]
    assert interval_of_blocks([noisy] * 5).width == pytest.approx(2 * 1.3 * 1.253 * 1.483 * 0.05 / 25**0.5)
    assert interval_of_blocks([[100.0] * 5] * 5).width == 0.0


def test_blocks_that_are_like_the_one_before_say_less() -> None:
    levels = [1.00, 1.01, 1.02, 1.03, 1.04, 1.05]
    mixed = [1.02, 1.05, 1.00, 1.04, 1.01, 1.03]
    wandering, jumping = (interval_of_blocks([[level] for level in each]) for each in (levels, mixed))
    assert wandering.width > 1.5 * jumping.width
    assert jumping.width == pytest.approx(2 * 2.571 * 0.0187083 / 6**0.5 / 1.025, rel=1e-4)


def test_too_little_is_said_as_it_is() -> None:
    assert interval_of_blocks([[3.0], [], []]) == Interval(3.0, 3.0, 3.0, 1)
    wide = interval_of_blocks([[3.0], [1.0], []])
    assert (wide.median, wide.low, wide.n) == (2.0, 0.0, 2)
    assert wide.high == pytest.approx(2 + 12.706)
    assert interval_of_blocks([]).n == 0


def test_95_percent_of_intervals_hold_the_median_although_the_machine_wavers() -> None:
    """Blocks of 20 steps, each block 1 % off, each step 2 %: plain order statistics would be right 8 times of 10."""
    random = Random(1)
    held = plain = 0
    for _ in range(400):
        blocks = []
        for _ in range(5):
            pace = random.gauss(1.0, 0.01)
            blocks.append([pace * random.gauss(1.0, 0.02) for _ in range(20)])
        found = interval_of_blocks(blocks)
        held += found.low <= 1.0 <= found.high
        simple = interval_of([step for block in blocks for step in block])
        plain += simple.low <= 1.0 <= simple.high
    assert 0.93 <= held / 400 <= 0.98
    assert plain / 400 < 0.80
