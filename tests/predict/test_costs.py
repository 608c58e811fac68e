"""Compute time between and outside of profiled batches, and its uncertainty."""

from __future__ import annotations

import pytest

from scalewise.formats.profile import ProfileDocument, StepCost
from scalewise.predict.device_costs import Costs


def profile(*steps: tuple[int, float]) -> ProfileDocument:
    """Profile of (batch, seconds of compute) steps: a quarter is forward; loading takes 1 ms per sample."""
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


def test_steps_between_two_batches_are_interpolated_linearly() -> None:
    costs = Costs(profile((10, 1.0), (20, 3.0)))
    assert costs.compute_seconds(15) == pytest.approx(2.0)
    assert costs.seconds("load", 15) == pytest.approx(0.015)
    assert costs.seconds("loss", 15) == 0


def test_below_the_smallest_batch_only_loading_gets_faster() -> None:
    costs = Costs(profile((10, 1.0), (20, 3.0)))
    assert costs.compute_seconds(5) == pytest.approx(1.0)
    assert costs.seconds("load", 5) == pytest.approx(0.005)
    assert costs.seconds("forward", 0) == pytest.approx(0.25)


def test_steps_above_the_largest_batch_are_proportional_to_it() -> None:
    assert Costs(profile((10, 1.0), (20, 3.0))).compute_seconds(40) == pytest.approx(6.0)


def test_a_profiled_batch_has_no_spread() -> None:
    spread = Costs(profile((10, 1.0), (20, 3.0))).spread(20)
    assert (spread.low, spread.high, spread.known) == (1.0, 1.0, "measured")


def test_spread_between_batches_covers_the_seconds_per_sample_of_both() -> None:
    """At 13 samples, 0.1 to 0.2 s per sample give 1.3 to 2.6 s; 1.9 s is expected."""
    spread = Costs(profile((10, 1.0), (20, 4.0))).spread(13)
    assert spread.known == "interpolated"
    assert spread.low == pytest.approx(1.3 / 1.9)
    assert spread.high == pytest.approx(2.6 / 1.9)


def test_equally_long_steps_have_no_spread_between_them() -> None:
    spread = Costs(profile((10, 1.0), (20, 1.0))).spread(15)
    assert (spread.low, spread.high) == (1.0, 1.0)


def test_spread_outside_of_profiled_batches_is_wide() -> None:
    costs = Costs(profile((10, 1.0), (20, 4.0)))
    below, above = costs.spread(5), costs.spread(80)
    assert (below.known, above.known) == ("extrapolated", "extrapolated")
    assert below.low == pytest.approx(0.5)
    assert below.high == pytest.approx(2.0)
    assert above.low < 0.9 < 1.2 < above.high
