"""Which rank's figures are shown for a run."""

from __future__ import annotations

from scalewise.phases import shared_out
from scalewise.verbs.outcomes import pace_of, slowest


def test_a_step_takes_as_long_as_its_slowest_rank() -> None:
    assert slowest([[1.0, 5.0, 2.0], [4.0, 2.0, 2.0]]) == [4.0, 5.0, 2.0]


def test_the_first_rank_sets_the_pace_unless_another_takes_longer() -> None:
    assert pace_of([{"forward": 0.96}, {"forward": 1.0}]) == 0
    assert pace_of([{"forward": 0.9}, {"forward": 0.5, "update": 0.6}]) == 1


def test_of_workers_on_their_own_the_one_at_the_median_is_shown() -> None:
    assert pace_of([{"forward": 4.0}, {"forward": 1.0}, {"forward": 1.2}], alone=1.15) == 2
    assert pace_of([{}, {"forward": 4.0}], alone=1.0) == 1


def test_phases_are_shares_of_the_step_that_is_shown() -> None:
    """The slowest of all ranks, step by step, is slower than each rank's own median."""
    assert shared_out({"update": 1.0, "forward": 3.0}, 5.0) == {"forward": 3.75, "update": 1.25}
    assert shared_out({}, 5.0) == {}
