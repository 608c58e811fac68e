"""A reference that moves says that the machine did."""

from __future__ import annotations

from scalewise.measuring.reference import Reference
from scalewise.measuring.spread import Spread
from scalewise.results.statistics import Interval


def seen(median: float, noise: float = 0.01) -> Interval:
    return Interval(median, median * (1 - noise), median * (1 + noise), 20)


def test_it_has_moved_when_it_is_surely_5_percent_from_its_median() -> None:
    reference = Reference()
    answers = [reference.moved(seen(value)) for value in (1.0, 1.03, 0.98, 1.5, 1.0, 0.9, 1.02)]
    assert answers == [False, False, False, True, False, True, False]


def test_its_own_noise_is_no_drift() -> None:
    reference = Reference([1.0, 1.0, 1.0])
    assert not reference.moved(seen(1.1, noise=0.08))
    assert reference.moved(seen(1.1, noise=0.02))


def test_visits_that_differ_on_a_machine_that_stands_still_are_no_drift() -> None:
    scattered, steady = Spread(0.1, 30), Spread(0.01, 30)
    assert not Reference([1.0, 1.0, 1.0]).moved(seen(1.2), visits=scattered)
    assert Reference([1.0, 1.0, 1.0]).moved(seen(1.4), visits=scattered)
    assert Reference([1.0, 1.0, 1.0]).moved(seen(1.2), visits=steady)
    assert not Reference([1.0]).moved(seen(1.4), visits=scattered)  # a median of one visit is no surer than it


def test_it_takes_a_tenth_of_the_time() -> None:
    reference = Reference()
    reference.moved(seen(1.0), cost_seconds=0.5)
    reference.since_seconds = 4.9
    assert not reference.due()
    reference.since_seconds = 5.0
    assert reference.due()
