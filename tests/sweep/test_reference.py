"""Drift is detected from the step times of a reference cell."""

from __future__ import annotations

from scalewise.core.statistics import Interval
from scalewise.sweep.drift import Reference, Spread


def step(median: float, noise: float = 0.01) -> Interval:
    return Interval(median, median * (1 - noise), median * (1 + noise), 20)


def test_a_change_of_more_than_5_percent_is_drift() -> None:
    reference = Reference()
    moved = [reference.moved(step(value)) for value in (1.0, 1.03, 0.98, 1.5, 1.0, 0.9, 1.02)]
    assert moved == [False, False, False, True, False, True, False]


def test_the_noise_of_the_reference_is_no_drift() -> None:
    reference = Reference([1.0, 1.0, 1.0])
    assert not reference.moved(step(1.1, noise=0.08))
    assert reference.moved(step(1.1, noise=0.02))


def test_the_usual_difference_between_visits_is_no_drift() -> None:
    scattered, steady = Spread(0.1, 30), Spread(0.01, 30)
    assert not Reference([1.0, 1.0, 1.0]).moved(step(1.2), visits=scattered)
    assert Reference([1.0, 1.0, 1.0]).moved(step(1.4), visits=scattered)
    assert Reference([1.0, 1.0, 1.0]).moved(step(1.2), visits=steady)
    assert not Reference([1.0]).moved(step(1.4), visits=scattered)  # one earlier visit is as uncertain as this one


def test_the_reference_takes_a_tenth_of_the_time() -> None:
    reference = Reference()
    reference.moved(step(1.0), cost_seconds=0.5)
    reference.since_seconds = 4.9
    assert not reference.due()
    reference.since_seconds = 5.0
    assert reference.due()
