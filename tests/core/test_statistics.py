"""Medians with 95 % intervals: order statistics, or Student's t for few values."""

from __future__ import annotations

import math
import random

import pytest

from scalewise.core.statistics import Interval, critical_value, interval_of, low_quantile


def test_interval_of_no_values_is_nan() -> None:
    interval = interval_of([])
    assert interval.n == 0
    assert math.isnan(interval.median)


def test_a_single_value_has_no_interval() -> None:
    assert interval_of([3.0]) == Interval(3.0, 3.0, 3.0, 1)
    assert interval_of([0.003]).text == "3 ms  [timed once]"
    assert interval_of([0.003]).width_text == "timed once"


def test_few_values_use_students_t() -> None:
    interval = interval_of([9.0, 11.0, 10.0])
    assert (interval.low, interval.high) == pytest.approx((10 - 4.303 / 3**0.5, 10 + 4.303 / 3**0.5))
    assert interval_of([1.0, 3.0]).low == 0.0  # times are not negative
    skewed = interval_of([1.0, 1.0, 1.0, 1.0, 100.0])
    assert skewed.low <= skewed.median == 1.0


@pytest.mark.parametrize(("degrees", "value"), [(1, 12.706), (4, 2.776), (30, 2.042), (60, 2.000), (1000, 1.962)])
def test_critical_values(degrees: int, value: float) -> None:
    assert critical_value(degrees) == pytest.approx(value, abs=0.002)


@pytest.mark.parametrize(("count", "low", "high"), [(6, 1, 6), (10, 2, 9), (20, 6, 15), (100, 41, 60)])
def test_order_statistics_of_the_interval(count: int, low: int, high: int) -> None:
    values = list(range(1, count + 1))
    random.Random(0).shuffle(values)
    interval = interval_of(values)
    assert (interval.low, interval.high) == (low, high)
    assert interval.low <= interval.median <= interval.high


def test_interval_contains_the_true_median_about_95_times_in_100() -> None:
    rng = random.Random(1)
    hits = 0
    for _ in range(1000):
        interval = interval_of([rng.expovariate(1.0) for _ in range(30)])
        hits += interval.low <= math.log(2) <= interval.high
    assert 930 <= hits <= 985


def test_a_low_quantile_ignores_the_longest_times() -> None:
    assert low_quantile([3.0, 1.0, 9.0, 2.0, 8.0]) == 2.0
    assert low_quantile([5.0, 4.0]) == 4.0
    assert low_quantile([float(value) for value in range(61)], 0.1) == 6.0
