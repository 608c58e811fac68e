"""Medians and confidence intervals of repeated timings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from scalewise.core.units import seconds_text

FEWEST = 6
"""Number of values from which order statistics give a 95 % interval of the median."""
_STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % points of Student's t for 1 to 30 degrees of freedom."""


@dataclass(frozen=True)
class Interval:
    """Median with its 95 % interval. With a single value, `low` and `high` equal the median."""

    median: float
    low: float
    high: float
    n: int

    @property
    def width(self) -> float:
        """Width of the interval as a share of the median."""
        return (self.high - self.low) / self.median if self.median > 0 else math.inf

    @property
    def width_text(self) -> str:
        """Text such as '95% interval ± 0.9%', or 'timed once'."""
        return f"95% interval ± {self.width / 2:.1%}" if self.n > 1 else "timed once"

    @property
    def text(self) -> str:
        """Text such as '4.2 ms [95% interval 4.1 ms to 4.4 ms, 30 timed]', or '4.2 ms [timed once]'."""
        limits = f"95% interval {seconds_text(self.low)} to {seconds_text(self.high)}, {self.n:,} timed"
        if self.low <= 0:
            limits = f"{self.n:,} timed, too few for an interval"
        return f"{seconds_text(self.median)}  [{self.width_text if self.n == 1 else limits}]"


def interval_of(values: Sequence[float]) -> Interval:
    """Return the median with its 95 % interval.

    Order statistics assume nothing about the noise, but need six values. Two to five values use Student's t.
    """
    ordered = sorted(values)
    count = len(ordered)
    if count == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    center = median(ordered)
    if count < FEWEST:
        low_end, high_end = student_interval(ordered)
        return Interval(center, min(low_end, center), max(high_end, center), count)
    half_width = 0.98 * math.sqrt(count)
    low = max(0, math.floor(count / 2 - half_width))
    high = min(count - 1, math.ceil(count / 2 + half_width) - 1)
    return Interval(center, ordered[low], ordered[high], count)


def low_quantile(values: Sequence[float], share: float = 0.25) -> float:
    """Return the value below which this share of the values lies; of few values, nearly the smallest."""
    return sorted(values)[int((len(values) - 1) * share)]


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the 95 % interval of the mean of times, not below 0. A single value is both ends."""
    mean, count = fmean(values), len(values)
    if count == 1:
        return mean, mean
    half_width = critical_value(count - 1) * stdev(values) / math.sqrt(count)
    return max(0.0, mean - half_width), mean + half_width


def critical_value(degrees_of_freedom: int) -> float:
    """Return half the width of a 95 % interval in standard errors: 12.7 with two values, 1.96 with very many."""
    return (
        _STUDENT_T[degrees_of_freedom - 1]
        if degrees_of_freedom <= len(_STUDENT_T)
        else 1.96 + 2.46 / degrees_of_freedom
    )
