"""Summaries of repeated timings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from scalewise.results.units import seconds_text

FEWEST = 6
"""Values without which no 95 % interval of a median exists."""


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % interval (order statistics: nothing is assumed about the noise)."""

    median: float
    low: float
    high: float
    n: int

    @property
    def label(self) -> str:
        """What `low` and `high` are."""
        return "95 %" if self.n >= FEWEST else "all"

    @property
    def width(self) -> float:
        """Of the interval, as a share of the median."""
        return (self.high - self.low) / self.median if self.median > 0 else math.inf

    @property
    def width_text(self) -> str:
        """'95 % interval 1.8% wide'; of too few for one: 'all 2 within 18.0%'."""
        if self.n >= FEWEST:
            return f"95 % interval {self.width:.1%} wide"
        return f"all {self.n} within {self.width:.1%}" if self.n > 1 else "timed once"

    @property
    def text(self) -> str:
        """'4.2 ms [95 %: 4.1 ms to 4.4 ms, n = 30]'."""
        reach = f"{seconds_text(self.low)} to {seconds_text(self.high)}"
        return f"{seconds_text(self.median)}  [{self.label}: {reach}, n = {self.n}]"


def interval_of(values: Sequence[float]) -> Interval:
    """With fewer than six values no 95 % interval exists; the extremes stand in for it."""
    ordered = sorted(values)
    count = len(ordered)
    if count == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    if count < FEWEST:
        return Interval(median(ordered), ordered[0], ordered[-1], count)
    reach = 0.98 * math.sqrt(count)
    low = max(0, math.floor(count / 2 - reach))
    high = min(count - 1, math.ceil(count / 2 + reach) - 1)
    return Interval(median(ordered), ordered[low], ordered[high], count)
