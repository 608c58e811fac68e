"""Which rank's figures are shown for a run."""

from __future__ import annotations

import pytest

from scalewise.phases import shared_out
from scalewise.plan import Footprint
from scalewise.session.placement import Placement
from scalewise.step.settings import Settings
from scalewise.strategies.registry import strategy_of
from scalewise.timeline import Span
from scalewise.training.outcome import Outcome, Update
from scalewise.training.request import Request
from scalewise.verbs.outcomes import (
    curve_of,
    memory_of,
    notes_on,
    pace_of,
    samples_per_second,
    slowest,
    spread_text,
    timeline_of,
)


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


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        ("mirrored", "mirrored"),
        ("parameter-server:servers=2", "parameter-server:servers=2"),
        ("hybrid", "hybrid"),
        ("hybrid:stages=2", "hybrid:stages=2"),
        ("pipeline", "pipeline with 16 micro-batches"),
        ("pipeline:schedule=gpipe", "pipeline:schedule=gpipe with 16 micro-batches"),
        ("pipeline:microbatches=5", "pipeline:microbatches=5"),
    ],
)
def test_a_strategy_is_told_with_what_was_asked_for_and_what_it_chose(strategy: str, text: str) -> None:
    assert spread_text(strategy_of(strategy), 16) == text


def test_ranks_of_hosts_with_clocks_of_their_own_begin_together() -> None:
    """And those of one host stay as they were, to each other."""
    made = [
        [Span(0, "forward", 5.0, 1.0), Span(0, "backward", 6.0, 2.0)],
        [Span(1, "forward", 5.5, 1.0)],
        [Span(2, "forward", 100_005.0, 1.0)],
    ]
    outcomes = [Outcome("made", 8, 1, "eager", "device", 1, spans=spans) for spans in made]
    assert [(span.rank, span.start) for span in timeline_of(outcomes).spans] == [(0, 0.0), (0, 1.0), (1, 0.5), (2, 0.0)]


def stepped(*seconds: float, warm_up: int = 0, resumed_at: int = 0) -> Outcome:
    """Over 10 samples: batches of 4 are of 4, 4 and 2."""
    outcome = Outcome("made", 10, 1, "eager", "device", len(seconds), resumed_at=resumed_at)
    outcome.all_seconds, outcome.step_seconds = list(seconds), list(seconds[warm_up:])
    outcome.losses = [1.0] * len(seconds)
    return outcome


def test_a_short_last_batch_counts_the_samples_it_has() -> None:
    assert [samples for _, _, samples in curve_of(stepped(*[1.0] * 4), 4)] == [4, 4, 2, 4]
    assert curve_of(stepped(1.0, 2.0, resumed_at=5), 4) == [(1.0, 1.0, 2), (3.0, 1.0, 4)]


def test_a_rate_is_samples_over_the_wall_time_of_the_steps_that_count() -> None:
    """One step in four takes ten times as long: the median knows nothing of it."""
    outcomes = [stepped(9.0, 1.0, 1.0, 10.0, warm_up=1), stepped(9.0, 1.0, 2.0, 1.0, warm_up=1)]
    assert samples_per_second(outcomes, 4) == pytest.approx((4 + 2 + 4) / (1.0 + 1.0 + 10.0))
    assert samples_per_second([stepped(9.0, warm_up=1)], 4) is None


def test_memory_after_a_death_is_that_of_the_workers_it_was_measured_on() -> None:
    left = [Outcome("made", 10, 1, "eager", "device", 1, worker=worker, peak_memory_bytes=worker) for worker in (1, 3)]
    for outcome in left:
        outcome.footprint, outcome.updates = Footprint((4,), 4, 4, 4), [Update(0, 0, 1, 1.0, 0.0, 1.0)]
    request = Request("tests.tiny:float32", strategy_of("parameter-server-async"), Settings(4))
    memory = memory_of(request, Placement(4, "cpu"), left)
    assert memory.measured_by_rank == [None, 1, None, 3]


@pytest.mark.parametrize(
    ("strategy", "devices", "microbatches", "seen"),
    [
        ("mirrored", 4, None, "one device's samples"),
        ("layers", 4, 1, ""),
        ("pipeline", 4, 8, "one micro-batch"),
        ("pipeline:schedule=gpipe,microbatches=1", 4, 1, ""),
        ("hybrid:stages=2", 4, 8, "one micro-batch"),
        ("hybrid:tensor=2", 4, None, "the samples of one group of devices"),
        ("hybrid:tensor=4", 4, None, ""),
        ("mirrored", 1, None, ""),
    ],
)
def test_what_batch_norm_sees_of_a_batch_is_told_by_strategy(
    strategy: str, devices: int, microbatches: int | None, seen: str
) -> None:
    outcome = Outcome("made", 10, 1, "eager", "device", 1)
    outcome.footprint = Footprint((4,), 4, 4, 4, microbatches=microbatches, norms_batches=True)
    request = Request("tests.tiny:float32", strategy_of(strategy), Settings(4))
    notes = [note for note in notes_on(request, Placement(devices, "cpu"), [outcome]) if "batch norm" in note]
    said = f"batch norm sees {seen} at a time: weights differ a little from those of one device"
    assert notes == ([said] if seen else [])
