"""Detect drift of the machine's speed with a reference cell, and estimate how much visits to a cell differ."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, median_low, stdev
from typing import TypeVar

from scalewise.core.statistics import Interval, critical_value

OUTLIER_DEVIATIONS = 2.326
"""Standard deviations beyond which a cell's spread is an outlier (1 of 100 cells by chance)."""
DIFFERENT_DEVIATIONS = 1.96
"""Standard deviations beyond which two groups of cells have different spreads (1 of 20 by chance)."""
SEVERAL = 5
"""Visits from which on a cell that is steadier than the others is taken as such."""
ROUNDS = 20
"""Iterations of the robust estimate."""

Kind = TypeVar("Kind", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """Standard deviation of the visits to a cell, relative to their mean and pooled over cells."""

    part: float
    """Relative standard deviation."""
    degrees_of_freedom: int
    """Number of visits beyond the first of every cell."""

    def reach(self, levels: Sequence[float]) -> float:
        """Return the half-width of the 95% interval of the mean of a cell's visits.

        The larger of the pooled spread and the cell's own spread counts. If the cell's own spread is an outlier
        (very large, or very small over several visits), only its own visits count.
        """
        centre, count = fmean(levels), len(levels)
        own = spread_of(levels)
        steady = count >= SEVERAL and own**2 < _chi_squared(count - 1, -OUTLIER_DEVIATIONS) * self.part**2
        if steady or own**2 > _chi_squared(count - 1, OUTLIER_DEVIATIONS) * self.part**2:
            reach = critical_value(count - 1) * own
        else:
            reach = critical_value(self.degrees_of_freedom) * max(self.part, own)
        return reach * centre / math.sqrt(count)


def usual_spreads(kinds: Mapping[Kind, Sequence[Sequence[float]]]) -> dict[Kind, Spread | None]:
    """Estimate the spread of each kind of cells; kinds whose spread is not clearly different share one estimate."""
    pooled = usual_spread([levels for cells in kinds.values() for levels in cells])
    spreads = {}
    for kind, cells in kinds.items():
        own = usual_spread(cells)
        others = usual_spread([levels for other, members in kinds.items() if other != kind for levels in members])
        spreads[kind] = own if own and others and _differ(own, others) else pooled
    return spreads


def usual_spread(cells: Sequence[Sequence[float]]) -> Spread | None:
    """Estimate the pooled spread of cells visited at least twice; None without any.

    The estimate is robust: the contribution of a cell is limited to what is rare among the others.
    """
    cells = [levels for levels in cells if len(levels) > 1]
    if not cells:
        return None
    degrees = [len(levels) - 1 for levels in cells]
    squares = [spread_of(levels) ** 2 for levels in cells]
    usual = median(square / _chi_squared(free, 0.0) for square, free in zip(squares, degrees, strict=True))
    for _ in range(ROUNDS):
        limits = [_chi_squared(free, OUTLIER_DEVIATIONS) * usual for free in degrees]
        clipped = [min(square, limit) for square, limit in zip(squares, limits, strict=True)]
        usual = sum(square * free for square, free in zip(clipped, degrees, strict=True)) / sum(degrees)
    return Spread(math.sqrt(usual), sum(degrees))


def _differ(one: Spread, other: Spread) -> bool:
    """Return whether two spreads differ, by Fisher's z of their variances, which is nearly normal."""
    if not one.part or not other.part:
        return one.part != other.part
    deviation = math.sqrt((1 / one.degrees_of_freedom + 1 / other.degrees_of_freedom) / 2)
    return abs(math.log(one.part / other.part)) > DIFFERENT_DEVIATIONS * deviation


def spread_of(levels: Sequence[float]) -> float:
    """Return the relative standard deviation of the visits to one cell, 0 for a single visit."""
    return stdev(levels) / fmean(levels) if len(levels) > 1 else 0.0


def _chi_squared(degrees_of_freedom: int, deviations: float) -> float:
    """Return a chi-squared quantile divided by the degrees of freedom (Wilson-Hilferty approximation).

    The quantile is given in standard deviations of a normal variable.
    """
    if not degrees_of_freedom:
        return 0.0
    share = 2 / (9 * degrees_of_freedom)
    return (1 - share + deviations * math.sqrt(share)) ** 3


MOVED = 0.05
"""Relative change of the reference cell's step time that counts as drift."""
SHARE = 0.1
"""Largest fraction of the time spent on the reference cell."""


@dataclass
class Reference:
    """Step times of the reference cell so far, and when it is due again."""

    history: list[float] = field(default_factory=list)
    """Median step times of earlier visits."""
    cost_seconds: float = 0.0
    """Duration of the last visit."""
    since_seconds: float = 0.0
    """Time spent on other cells since the last visit."""

    def due(self) -> bool:
        return self.since_seconds * SHARE >= self.cost_seconds

    def moved(self, step: Interval, cost_seconds: float = 0.0, visits: Spread | None = None) -> bool:
        """Record a visit; return whether its step time differs from the earlier ones."""
        away = self.is_away(step, visits)
        self.history.append(step.median)
        self.cost_seconds, self.since_seconds = cost_seconds, 0.0
        return away

    def is_away(self, step: Interval, visits: Spread | None = None) -> bool:
        """Return whether a step time differs from the median of earlier visits by more than 5% and the noise.

        `visits` is the usual difference between visits to a cell while the machine's speed does not change.
        """
        if not self.history:
            return False
        usual = median_low(self.history)  # disturbances slow a machine down, so the lower median is closer to its speed
        noise = visits.reach([step.median]) * math.sqrt(1 + 1 / len(self.history)) if visits else 0.0
        low, high = min(step.low, step.median - noise), max(step.high, step.median + noise)
        return low > usual * (1 + MOVED) or high < usual * (1 - MOVED)
