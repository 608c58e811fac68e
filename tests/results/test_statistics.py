"""Medians with 95 % intervals from order statistics."""

from __future__ import annotations

import math
import random

import pytest

from scalewise.results.statistics import interval_of


def test_nothing_was_measured() -> None:
    interval = interval_of([])
    assert interval.n == 0
    assert math.isnan(interval.median)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_with_few_values_the_extremes_stand_in(count: int) -> None:
    values = [float(value) for value in range(count, 0, -1)]
    interval = interval_of(values)
    assert (interval.low, interval.high, interval.n) == (1.0, float(count), count)
    assert interval.median == (count + 1) / 2


@pytest.mark.parametrize(("count", "low", "high"), [(6, 1, 6), (10, 2, 9), (20, 6, 15), (100, 41, 60)])
def test_ranks_of_the_interval(count: int, low: int, high: int) -> None:
    values = list(range(1, count + 1))
    random.Random(0).shuffle(values)
    interval = interval_of(values)
    assert (interval.low, interval.high) == (low, high)
    assert interval.low <= interval.median <= interval.high


def test_it_holds_the_true_median_about_95_times_in_100() -> None:
    rng = random.Random(1)
    held = 0
    for _ in range(1000):
        interval = interval_of([rng.expovariate(1.0) for _ in range(30)])
        held += interval.low <= math.log(2) <= interval.high
    assert 930 <= held <= 985
