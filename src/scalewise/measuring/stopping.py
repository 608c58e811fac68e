"""When a cell has been timed enough, and how many steps its next block should have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from scalewise.measuring.block import (
    GRAPH_WARM_UP_STEPS,
    OF_A_MEDIAN,
    WARM_UP_SECONDS,
    WARM_UP_STEPS,
    Block,
    counted,
    interval_of_blocks,
    stray_of,
)
from scalewise.measuring.spread import Spread
from scalewise.results.statistics import Interval, critical_value

LEAST_BLOCKS = 5
"""Repeats that count, without which little is known of how a cell differs from one minute to the next: of fewer, the
first interval that happens to be narrow would end a cell, and be too narrow."""
LEAST_BESIDE_OTHERS, KNOWN_FROM = 3, 8
"""Repeats that do where other cells tell how repeats differ, and the degrees of freedom from which on they do."""
LEAST_STEPS = 2
"""Beside those that are dropped; half of a block's are never dropped, so that of the shortest blocks three count."""
FIRST_STEPS, CAUTIOUS_STEPS = 8, 3
"""Of a first block: of cells expected to be quick, and of those about which nothing is known."""
FIRST_SECONDS = 1.0
"""It does not count beside others: so much of it, and no more, is worth knowing a cell's noise."""
BLOCK_SECONDS = 1.5
MOST_WARM_UP_STEPS = 200
OWN_NOISE = 0.5
"""The share of the wanted interval that a visit's own steps may use up; the rest is for how visits differ."""


@dataclass(frozen=True)
class Goal:
    """`percent` is the width of the interval to reach, of the step time; `budget_seconds` is a cell's."""

    percent: float = 2.0
    budget_seconds: float = 30.0

    def ends(self, blocks: Sequence[Block], usual: Spread | None = None) -> bool:
        """Reached, or the budget is spent. There is a second visit, unless a few steps take half the budget."""
        if len(blocks) == 1:
            return sum(blocks[0].seconds) >= self.budget_seconds / 2
        repeats = counted(blocks)
        interval = interval_of_blocks([block.seconds for block in repeats], usual)
        return self.reached(interval, len(repeats), usual) or spent_seconds(blocks) >= self.budget_seconds

    def reached(self, interval: Interval, blocks: int, usual: Spread | None = None) -> bool:
        """With so many blocks that count."""
        return blocks >= least_blocks(usual) and self.is_met_by(interval)

    def is_met_by(self, interval: Interval) -> bool:
        return 100 * interval.width <= self.percent


def least_blocks(usual: Spread | None) -> int:
    return LEAST_BESIDE_OTHERS if is_known(usual) else LEAST_BLOCKS


def is_known(usual: Spread | None) -> bool:
    """Whether other cells tell how far visits lie from each other."""
    return usual is not None and usual.degrees_of_freedom >= KNOWN_FROM


def first_steps(expected_seconds: float | None, budget_seconds: float, graph: bool = False) -> int:
    """A first block takes little of the budget, whatever a step turns out to take."""
    if expected_seconds is None or expected_seconds * FIRST_STEPS > min(FIRST_SECONDS, budget_seconds / 4):
        return CAUTIOUS_STEPS
    return FIRST_STEPS + (GRAPH_WARM_UP_STEPS if graph else 0)


def next_steps(blocks: Sequence[Block], goal: Goal, graph: bool = False) -> int:
    """So many that steps' own noise does not matter; at least as long as its start-up, and not much longer.

    What is left of the budget is kept for as many visits as a cell needs.
    """
    seen = [block.seconds for block in counted(blocks)]
    step = max(median(seconds for each in seen for seconds in each), 1e-6)
    start_up = min(map(_start_up_seconds, blocks))
    timed = max(_quieting_steps(stray_of(seen) / step, goal), int(min(start_up, BLOCK_SECONDS) / step))
    left = max(0.0, goal.budget_seconds - spent_seconds(blocks))
    visits = max(1, LEAST_BLOCKS - (len(blocks) - 1))
    longest = min(max(BLOCK_SECONDS, 2 * start_up), left / visits - start_up)
    timed = max(LEAST_STEPS, min(timed, int(longest / step)))
    least = GRAPH_WARM_UP_STEPS if graph else WARM_UP_STEPS
    warm_up = min(max(least, math.ceil(WARM_UP_SECONDS / step)), MOST_WARM_UP_STEPS)
    return timed + warm_up


def _quieting_steps(noise: float, goal: Goal) -> int:
    """Of a visit: with `LEAST_BLOCKS` such visits, steps of such noise leave half of the interval unused."""
    width = 2 * critical_value(LEAST_BLOCKS - 1) * OF_A_MEDIAN * noise / math.sqrt(LEAST_BLOCKS)
    return math.ceil((100 * width / goal.percent) ** 2 / OWN_NOISE)


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


def progress(interval: Interval, blocks: int, spent_seconds: float, goal: Goal, usual: Spread | None = None) -> float:
    """How far a cell is, from 0 to 1: by its interval, or by its budget if that ends it sooner."""
    if not blocks:
        return 0.0
    wide = 100 * interval.width > goal.percent
    by_width = (goal.percent / interval.width / 100) ** 2 if wide else 1.0
    by_width *= min(1.0, blocks / least_blocks(usual))
    return min(1.0, max(by_width, spent_seconds / goal.budget_seconds))
