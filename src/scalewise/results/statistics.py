"""Summaries of repeated timings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % interval (order statistics: nothing is assumed about the noise)."""

    median: float
    low: float
    high: float
    n: int


def interval_of(values: Sequence[float]) -> Interval:
    """With fewer than six values no 95 % interval exists; the extremes stand in for it."""
    ordered = sorted(values)
    count = len(ordered)
    if count == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    if count < 6:
        return Interval(median(ordered), ordered[0], ordered[-1], count)
    reach = 0.98 * math.sqrt(count)
    low = max(0, math.floor(count / 2 - reach))
    high = min(count - 1, math.ceil(count / 2 + reach) - 1)
    return Interval(median(ordered), ordered[low], ordered[high], count)
