"""Summaries of repeated timings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from scalewise.results.units import seconds_text

FEWEST = 6
"""Values without which order statistics give no 95 % interval of a median."""
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % points of Student's t for 1 to 30 degrees of freedom."""


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % interval. What was timed once has none: `low` and `high` are the value itself."""

    median: float
    low: float
    high: float
    n: int

    @property
    def width(self) -> float:
        """Of the interval, as a share of the median."""
        return (self.high - self.low) / self.median if self.median > 0 else math.inf

    @property
    def width_text(self) -> str:
        """'95 % interval 1.8% wide', or 'timed once'."""
        return f"95 % interval {self.width:.1%} wide" if self.n > 1 else "timed once"

    @property
    def text(self) -> str:
        """'4.2 ms [95 %: 4.1 ms to 4.4 ms, n = 30]', or '4.2 ms [timed once]'."""
        reach = f"95 %: {seconds_text(self.low)} to {seconds_text(self.high)}, n = {self.n}"
        return f"{seconds_text(self.median)}  [{self.width_text if self.n == 1 else reach}]"


def interval_of(values: Sequence[float]) -> Interval:
    """By order statistics, which assume nothing about the noise; of two to five values by Student's t."""
    ordered = sorted(values)
    count = len(ordered)
    if count == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    middle = median(ordered)
    if count < FEWEST:
        low_end, high_end = student_interval(ordered)
        return Interval(middle, min(low_end, middle), max(high_end, middle), count)
    reach = 0.98 * math.sqrt(count)
    low = max(0, math.floor(count / 2 - reach))
    high = min(count - 1, math.ceil(count / 2 + reach) - 1)
    return Interval(middle, ordered[low], ordered[high], count)


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """The ends of the 95 % interval of the mean, of times: not below 0. A single value is both."""
    centre, count = fmean(values), len(values)
    if count == 1:
        return centre, centre
    reach = critical_value(count - 1) * stdev(values) / math.sqrt(count)
    return max(0.0, centre - reach), centre + reach


def critical_value(degrees_of_freedom: int) -> float:
    """How many standard errors a 95 % interval reaches: 12.7 with two values, 1.96 with very many."""
    return STUDENT[degrees_of_freedom - 1] if degrees_of_freedom <= len(STUDENT) else 1.96 + 2.46 / degrees_of_freedom
