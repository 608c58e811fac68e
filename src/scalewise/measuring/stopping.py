"""When a cell has been timed enough, and how many steps its next block should have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scalewise.measuring.block import (
    GRAPH_WARM_UP_STEPS,
    WARM_UP_SECONDS,
    WARM_UP_STEPS,
    Block,
    counted,
    interval_of_blocks,
)
from scalewise.results.statistics import FEWEST, Interval

LEAST_BLOCKS = 3
"""Repeats that count, without which nothing is known of how a cell differs from one minute to the next."""
LEAST_STEPS = 3
FIRST_STEPS, CAUTIOUS_STEPS = 8, 3
"""Of a first block: of cells expected to be quick, and of those about which nothing is known."""
BLOCK_SECONDS = 1.5
MOST_WARM_UP_STEPS = 200
MOST_GROWTH = 16.0
"""A first guess of the noise may be far off: no more than so many times the steps on its word."""


@dataclass(frozen=True)
class Goal:
    """`percent` is the width of the interval to reach, of the step time; `budget_seconds` is a cell's."""

    percent: float = 2.0
    budget_seconds: float = 30.0

    def ends(self, blocks: Sequence[Block]) -> bool:
        """Reached, or the budget is spent. There is a second visit, unless a few steps take half the budget."""
        if len(blocks) == 1:
            return sum(blocks[0].seconds) >= self.budget_seconds / 2
        repeats = counted(blocks)
        interval = interval_of_blocks([block.seconds for block in repeats])
        return self.reached(interval, len(repeats)) or spent_seconds(blocks) >= self.budget_seconds

    def reached(self, interval: Interval, blocks: int) -> bool:
        """With so many blocks that count."""
        return blocks >= LEAST_BLOCKS and interval.n >= FEWEST and 100 * interval.width <= self.percent


def first_steps(expected_seconds: float | None, budget_seconds: float, graph: bool = False) -> int:
    """A first block takes little of the budget, whatever a step turns out to take."""
    if expected_seconds is None or expected_seconds * FIRST_STEPS > budget_seconds / 4:
        return CAUTIOUS_STEPS
    return FIRST_STEPS + (GRAPH_WARM_UP_STEPS if graph else 0)


def next_steps(blocks: Sequence[Block], goal: Goal, graph: bool = False) -> int:
    """Enough to get there in the fewest blocks; at least as long as its start-up, and not much longer."""
    repeats = counted(blocks)
    interval = interval_of_blocks([block.seconds for block in repeats])
    step = max(interval.median, 1e-6)
    start_up = min(map(_start_up_seconds, blocks))
    if interval.n < FEWEST:
        wanted = LEAST_BLOCKS * LEAST_STEPS
    else:
        wanted = round(interval.n * min((100 * interval.width / goal.percent) ** 2, MOST_GROWTH))
    steps, repeated = (interval.n, len(repeats)) if len(blocks) > 1 else (0, 0)
    timed = max(LEAST_STEPS, math.ceil((wanted - steps) / max(1, LEAST_BLOCKS - repeated)))
    timed = max(timed, int(min(start_up, BLOCK_SECONDS) / step))
    left = max(0.0, goal.budget_seconds - spent_seconds(blocks))
    longest = min(max(BLOCK_SECONDS, 2 * start_up), left)
    timed = min(timed, max(LEAST_STEPS, int(longest / step)))
    least = GRAPH_WARM_UP_STEPS if graph else WARM_UP_STEPS
    warm_up = min(max(least, math.ceil(WARM_UP_SECONDS / step)), MOST_WARM_UP_STEPS)
    return timed + warm_up


def spent_seconds(blocks: Sequence[Block]) -> float:
    """Of a cell's budget. The first visit may have loaded libraries and data for all others: that is not the cell's."""
    if not blocks:
        return 0.0
    usual = min(map(_start_up_seconds, blocks[1:]), default=0.0)
    loading = max(0.0, _start_up_seconds(blocks[0]) - usual)
    return sum(block.wall_seconds for block in blocks) - loading


def _start_up_seconds(block: Block) -> float:
    """What a visit takes beside the steps that count."""
    return max(0.0, block.wall_seconds - sum(block.seconds))


def progress(interval: Interval, blocks: int, spent_seconds: float, goal: Goal) -> float:
    """How far a cell is, from 0 to 1: by its interval, or by its budget if that ends it sooner."""
    if not blocks:
        return 0.0
    wide = 100 * interval.width > goal.percent
    by_width = ((goal.percent / interval.width / 100) ** 2 if wide else 1.0) * min(1.0, blocks / LEAST_BLOCKS)
    return min(1.0, max(by_width, spent_seconds / goal.budget_seconds))
