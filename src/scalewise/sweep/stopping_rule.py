"""Decide when a cell has been timed enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from scalewise.core.errors import UserError
from scalewise.core.statistics import Interval, critical_value
from scalewise.sweep.drift import Spread
from scalewise.sweep.grid import (
    GRAPH_WARM_UP_STEPS,
    OF_A_MEDIAN,
    WARM_UP_SECONDS,
    WARM_UP_STEPS,
    Block,
    counted,
    interval_of_blocks,
    stray_of,
)

LEAST_BLOCKS = 5
"""Fewest counted blocks of a cell. With fewer, the first interval that is narrow by chance would end the cell and
would be too narrow."""
LEAST_BESIDE_OTHERS = 3
"""Fewest counted blocks if the spread between visits is known from other cells."""
KNOWN_FROM = 8
"""Degrees of freedom from which on the spread between visits counts as known."""
LEAST_STEPS = 2
"""Fewest steps per block in addition to the warm-up (of which at most half of a block's steps is dropped)."""
FIRST_STEPS = 8
"""Steps of the first block of a cell that is expected to be fast."""
CAUTIOUS_STEPS = 3
"""Steps of the first block of a cell whose step time is unknown or long."""
FIRST_SECONDS = 1.0
"""Longest expected duration of the first block, which does not count if there are others."""
BLOCK_SECONDS = 1.5
MOST_WARM_UP_STEPS = 200
OWN_NOISE = 0.5
"""Fraction of the requested interval that the noise of steps within a visit may use; the rest is for differences
between visits."""


def check_limits(protocol: str, interval: float, budget: float, budget_total: float | None, epochs: int | None) -> None:
    """Raise UserError for limits of a sweep that are invalid for any grid."""
    if protocol not in ("quick", "paper"):
        raise UserError(f"unknown protocol '{protocol}'; valid: quick, paper")
    for flag, value in (("--interval", interval), ("--budget", budget), ("--budget-total", budget_total)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UserError(f"{flag} is {value:g}; it must be a finite number above 0")
    if epochs is not None and protocol == "quick":
        raise UserError(
            f"--epochs {epochs} needs --protocol paper; add it, or limit the quick protocol with --interval and "
            "--budget"
        )
    if epochs is not None and epochs < 2:
        raise UserError(f"--epochs is {epochs}; use at least 2, because the first epoch is not counted")


@dataclass(frozen=True)
class Goal:
    """Precision to reach for each cell, and the time limit."""

    percent: float = 2.0
    """Requested width of the 95% interval, in percent of the step time."""
    budget_seconds: float = 30.0
    """Time limit per cell."""

    def ends(self, blocks: Sequence[Block], usual: Spread | None = None) -> bool:
        """Return whether a cell is finished: the goal is reached or the budget is used up.

        A cell is visited at least twice, unless a few steps take half the budget.
        """
        if len(blocks) == 1:
            return sum(blocks[0].seconds) >= self.budget_seconds / 2
        repeats = counted(blocks)
        interval = interval_of_blocks([block.seconds for block in repeats], usual)
        return self.reached(interval, len(repeats), usual) or spent_seconds(blocks) >= self.budget_seconds

    def reached(self, interval: Interval, blocks: int, usual: Spread | None = None) -> bool:
        """Return whether the interval is narrow enough and based on enough counted blocks."""
        return blocks >= least_blocks(usual) and self.is_met_by(interval)

    def is_met_by(self, interval: Interval) -> bool:
        return 100 * interval.width <= self.percent


def least_blocks(usual: Spread | None) -> int:
    return LEAST_BESIDE_OTHERS if is_known(usual) else LEAST_BLOCKS


def is_known(usual: Spread | None) -> bool:
    """Return whether the spread between visits is known well enough from other cells."""
    return usual is not None and usual.degrees_of_freedom >= KNOWN_FROM


def first_steps(expected_seconds: float | None, budget_seconds: float, graph: bool = False) -> int:
    """Return the steps of a cell's first block, few enough to use little of the budget even if steps are slow."""
    if expected_seconds is None or expected_seconds * FIRST_STEPS > min(FIRST_SECONDS, budget_seconds / 4):
        return CAUTIOUS_STEPS
    return FIRST_STEPS + (GRAPH_WARM_UP_STEPS if graph else 0)


def next_steps(blocks: Sequence[Block], goal: Goal, graph: bool = False) -> int:
    """Return the steps of a cell's next block.

    They suffice to average out the noise of single steps and take about as long as the start-up. The remaining budget
    is shared among the visits that the cell still needs.
    """
    steps_of_blocks = [block.seconds for block in counted(blocks)]
    step = max(median(seconds for steps in steps_of_blocks for seconds in steps), 1e-6)
    start_up = min(map(_start_up_seconds, blocks))
    timed = max(_averaging_steps(stray_of(steps_of_blocks) / step, goal), int(min(start_up, BLOCK_SECONDS) / step))
    remaining = max(0.0, goal.budget_seconds - spent_seconds(blocks))
    visits = max(1, LEAST_BLOCKS - (len(blocks) - 1))
    longest = min(max(BLOCK_SECONDS, 2 * start_up), remaining / visits - start_up)
    timed = max(LEAST_STEPS, min(timed, int(longest / step)))
    least = GRAPH_WARM_UP_STEPS if graph else WARM_UP_STEPS
    warm_up = min(max(least, math.ceil(WARM_UP_SECONDS / step)), MOST_WARM_UP_STEPS)
    return timed + warm_up


def _averaging_steps(noise: float, goal: Goal) -> int:
    """Return the steps per visit with which the noise of steps uses the share `OWN_NOISE` of the requested interval.

    The number assumes `LEAST_BLOCKS` visits; `noise` is the relative standard deviation of steps.
    """
    width = 2 * critical_value(LEAST_BLOCKS - 1) * OF_A_MEDIAN * noise / math.sqrt(LEAST_BLOCKS)
    return math.ceil((100 * width / goal.percent) ** 2 / OWN_NOISE)


def spent_seconds(blocks: Sequence[Block]) -> float:
    """Return the time used of a cell's budget, without loading libraries and data, which serves all cells."""
    if not blocks:
        return 0.0
    usual = min(map(_start_up_seconds, blocks[1:]), default=0.0)
    loading = max(0.0, _start_up_seconds(blocks[0]) - usual)
    return sum(block.wall_seconds for block in blocks) - loading


def _start_up_seconds(block: Block) -> float:
    """Return the duration of a visit without its counted steps."""
    return max(0.0, block.wall_seconds - sum(block.seconds))


def progress(interval: Interval, blocks: int, spent_seconds: float, goal: Goal, usual: Spread | None = None) -> float:
    """Return the progress of a cell from 0 to 1, by its interval or its budget, whichever is further."""
    if not blocks:
        return 0.0
    wide = 100 * interval.width > goal.percent
    by_width = (goal.percent / interval.width / 100) ** 2 if wide else 1.0
    by_width *= min(1.0, blocks / least_blocks(usual))
    return min(1.0, max(by_width, spent_seconds / goal.budget_seconds))
