"""End of the timing of a cell, on synthetic step times."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from scalewise.core.statistics import Interval
from scalewise.sweep.drift import Spread
from scalewise.sweep.grid import Block, counted, interval_of_blocks, warm_up_of
from scalewise.sweep.stopping_rule import Goal, first_steps, next_steps, progress, spent_seconds

Step = Callable[[], float]
START_UP_SECONDS = 0.2


def visits(step: Step, goal: Goal, loading_seconds: float = 0.0, pace: Step = lambda: 1.0) -> list[Block]:
    """Visit a cell as a sweep does, in simulated time; `pace` is the machine's relative step time in a visit."""
    blocks: list[Block] = []
    steps = first_steps(None, goal.budget_seconds)
    while True:
        now = pace()
        seconds = [now * step() for _ in range(steps)]
        after_warm_up = seconds[warm_up_of(seconds) :]
        start_up_seconds = START_UP_SECONDS + (0.0 if blocks else loading_seconds)
        blocks.append(Block(after_warm_up, wall_seconds=start_up_seconds + sum(seconds)))
        if goal.ends(blocks):
            return blocks
        steps = next_steps(blocks, goal)


def noisy(seconds: float, noise: float, seed: int = 0) -> Step:
    random = Random(seed)
    return lambda: seconds * random.gauss(1, noise)


@pytest.mark.parametrize(
    ("wavering", "noise", "budget_seconds"),
    [
        (0.0, 0.01, 30),
        (0.0, 0.05, 30),
        (0.003, 0.01, 30),
        (0.01, 0.03, 30),
        (0.015, 0.03, 30),
        (0.02, 0.03, 4),
        (0.1, 0.05, 4),
        (0.3, 0.05, 4),
    ],
)
def test_95_percent_of_intervals_contain_the_true_value(wavering: float, noise: float, budget_seconds: float) -> None:
    """Visits vary by `wavering` and steps by `noise`; cells end at a narrow interval or at the budget.

    Stopping at the first narrow interval hardly biases the intervals, because a cell has at least five visits.
    """
    random, goal, cells = Random(5), Goal(2, budget_seconds), 200
    hits = reached = 0
    for _ in range(cells):
        blocks = visits(lambda: 0.02 * random.gauss(1, noise), goal, pace=lambda: max(0.3, random.gauss(1, wavering)))
        interval = interval_of_blocks([block.seconds for block in counted(blocks)])
        hits += interval.low <= 0.02 <= interval.high
        reached += goal.reached(interval, len(counted(blocks)))
    assert 0.90 <= hits / cells <= 0.985
    assert (reached / cells > 0.95) == (budget_seconds == 30)


@pytest.mark.parametrize("seconds", [0.0002, 0.02, 1.0])
def test_a_steady_cell_needs_five_short_blocks_after_the_first(seconds: float) -> None:
    blocks = visits(noisy(seconds, 0.001), Goal(2, 1000))
    assert len(blocks) == 6
    assert sum(block.wall_seconds for block in blocks) < 11 * START_UP_SECONDS + 33 * seconds + 0.35


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1])
def test_a_noisy_cell_is_timed_until_its_interval_is_narrow_enough(noise: float) -> None:
    blocks = visits(noisy(0.02, noise), Goal(2, 1000))
    interval = interval_of_blocks([block.seconds for block in counted(blocks)])
    assert interval.width <= 0.02
    assert interval.median == pytest.approx(0.02, rel=0.02)
    assert interval.n < 8 * (490 * noise / 2) ** 2 + 60
    assert len(blocks) >= 6


def test_a_cell_needs_five_counted_blocks() -> None:
    goal = Goal(2)
    steady = Interval(1.0, 1.0, 1.0, 100)
    assert [goal.reached(steady, blocks) for blocks in (1, 2, 4, 5)] == [False, False, False, True]
    assert goal.reached(Interval(1.0, 0.99, 1.0099, 10), 5)
    assert not goal.reached(Interval(1.0, 0.99, 1.0101, 10), 5)


def test_three_blocks_suffice_if_the_spread_between_visits_is_known() -> None:
    goal, steady = Goal(2), Interval(1.0, 1.0, 1.0, 100)
    assert [goal.reached(steady, blocks, Spread(0.01, 8)) for blocks in (2, 3)] == [False, True]
    assert not goal.reached(steady, 4, Spread(0.01, 7))


def test_steps_of_new_ranks_do_not_count_even_if_loading_takes_the_budget() -> None:
    """The first four steps of new ranks touch new memory, and loading libraries takes two seconds."""
    fresh = iter([1.9, 1.5, 1.3, 1.3])
    blocks = visits(lambda: 0.1 * next(fresh, 1.0), Goal(2, 2.0), loading_seconds=2.0)
    assert [round(step, 6) for step in blocks[0].seconds] == [0.15, 0.13]
    interval = interval_of_blocks([block.seconds for block in counted(blocks)])
    assert interval.median == 0.1
    assert interval.n == 6
    assert spent_seconds(blocks) < 2.7


def test_the_budget_ends_a_cell_whose_interval_stays_wide() -> None:
    random = Random(3)
    blocks = visits(lambda: random.choice([0.01, 0.05]), Goal(2, 10))
    assert 10 <= sum(block.wall_seconds for block in blocks) < 12


def test_slow_steps_are_not_repeated_beyond_the_budget() -> None:
    blocks = visits(noisy(12.0, 0.05), Goal(2, 30))
    assert sum(len(block.seconds) for block in blocks) == 2
    assert sum(block.wall_seconds for block in blocks) < 40


def test_the_first_block_is_short_if_steps_may_be_slow() -> None:
    assert first_steps(None, 30) == 3
    assert first_steps(0.1, 30) == 8
    assert first_steps(0.5, 30) == 3
    assert first_steps(5.0, 30) == 3
    assert first_steps(0.001, 30, graph=True) == 14


def test_a_block_takes_up_to_twice_its_start_up() -> None:
    """A noisy cell is timed for twice the start-up time per visit."""
    blocks = [Block([0.01, 0.02], wall_seconds=4.15)] + 5 * [Block([0.01, 0.02] * 5, wall_seconds=4.15)]
    assert next_steps(blocks, Goal(2, 1000)) - 4 == 533  # 8 s: twice the start-up
    assert next_steps(blocks, Goal(2, 30)) - 4 == 81  # the remaining budget, without loading


def test_the_budget_is_shared_among_the_visits_that_a_cell_needs() -> None:
    """The steps needed to average the noise would use up the budget in the second visit."""
    blocks = visits(noisy(0.3, 0.1), Goal(2, 8))
    assert len(blocks) >= 5
    assert sum(block.wall_seconds for block in blocks) < 10


def test_progress_follows_the_interval_or_the_budget() -> None:
    goal = Goal(2, 30)
    assert progress(Interval(1.0, 0.98, 1.02, 50), 5, 3.0, goal) == pytest.approx(0.25)
    assert progress(Interval(1.0, 0.98, 1.02, 50), 5, 15.0, goal) == 0.5
    assert progress(Interval(1.0, 1.0, 1.0, 50), 1, 0.0, goal) == pytest.approx(1 / 5)
    assert progress(Interval(1.0, 1.0, 1.0, 50), 0, 0.0, goal) == 0.0
