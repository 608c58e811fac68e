"""Seconds between and outside of profiled batches, and how sure they are."""

from __future__ import annotations

import pytest

from scalewise.prediction.costs import Costs
from scalewise.results.profile import ProfileDocument, StepCost


def profile(*steps: tuple[int, float]) -> ProfileDocument:
    """(batch, seconds of compute): a quarter forward, the rest backward; a millisecond to load each sample."""
    return ProfileDocument(
        workload="x",
        device="y",
        execution="eager",
        samples_per_epoch=100,
        parameter_bytes=4,
        layers=(),
        steps=tuple(
            StepCost(batch=batch, forward=seconds / 4, backward=seconds * 3 / 4, update=0, load=batch / 1000)
            for batch, seconds in steps
        ),
    )


def test_between_two_batches_a_step_lies_on_the_line() -> None:
    costs = Costs(profile((10, 1.0), (20, 3.0)))
    assert costs.compute_seconds(15) == pytest.approx(2.0)
    assert costs.seconds("load", 15) == pytest.approx(0.015)
    assert costs.seconds("loss", 15) == 0


def test_below_the_smallest_batch_nothing_gets_quicker_but_loading() -> None:
    costs = Costs(profile((10, 1.0), (20, 3.0)))
    assert costs.compute_seconds(5) == pytest.approx(1.0)
    assert costs.seconds("load", 5) == pytest.approx(0.005)
    assert costs.seconds("forward", 0) == pytest.approx(0.25)


def test_above_the_largest_batch_a_step_grows_in_proportion() -> None:
    assert Costs(profile((10, 1.0), (20, 3.0))).compute_seconds(40) == pytest.approx(6.0)


def test_a_profiled_batch_is_as_sure_as_it_was_measured() -> None:
    spread = Costs(profile((10, 1.0), (20, 3.0))).spread(20)
    assert (spread.low, spread.high, spread.known) == (1.0, 1.0, "measured")


def test_where_seconds_per_sample_jump_both_sides_of_the_jump_are_possible() -> None:
    """At 13 between 0.1 and 0.2 s a sample: 1.3 to 2.6 s, expected 1.9."""
    spread = Costs(profile((10, 1.0), (20, 4.0))).spread(13)
    assert spread.known == "interpolated"
    assert spread.low == pytest.approx(1.3 / 1.9)
    assert spread.high == pytest.approx(2.6 / 1.9)


def test_where_a_step_takes_as_long_at_any_batch_there_is_nothing_to_guess() -> None:
    spread = Costs(profile((10, 1.0), (20, 1.0))).spread(15)
    assert (spread.low, spread.high) == (1.0, 1.0)


def test_outside_is_extrapolated_and_wide() -> None:
    costs = Costs(profile((10, 1.0), (20, 4.0)))
    below, above = costs.spread(5), costs.spread(80)
    assert (below.known, above.known) == ("extrapolated", "extrapolated")
    assert below.low == pytest.approx(0.5)
    assert below.high == pytest.approx(2.0)
    assert above.low < 0.9 < 1.2 < above.high
