"""Results of a run, combined from the outcomes of its ranks."""

from __future__ import annotations

import pytest

from scalewise.core.timeline import Span, shared_out
from scalewise.core.training_options import Settings
from scalewise.launch.placement import Placement
from scalewise.strategies.plan import Footprint
from scalewise.strategies.registry import strategy_of
from scalewise.training.results import (
    Outcome,
    Request,
    Update,
    curve_of,
    memory_of,
    notes_on,
    pace_of,
    samples_per_second,
    slowest,
    straggler_notes,
    strategy_with_microbatches,
    timeline_of,
)


def test_a_step_takes_as_long_as_its_slowest_rank() -> None:
    assert slowest([[1.0, 5.0, 2.0], [4.0, 2.0, 2.0]]) == [4.0, 5.0, 2.0]


def test_the_first_rank_sets_the_pace_unless_another_takes_longer() -> None:
    assert pace_of([{"forward": 0.96}, {"forward": 1.0}]) == 0
    assert pace_of([{"forward": 0.9}, {"forward": 0.5, "update": 0.6}]) == 1


def test_the_asynchronous_worker_closest_to_the_median_is_reported() -> None:
    assert pace_of([{"forward": 4.0}, {"forward": 1.0}, {"forward": 1.2}], alone=1.15) == 2
    assert pace_of([{}, {"forward": 4.0}], alone=1.0) == 1


def test_phases_are_scaled_to_the_reported_step() -> None:
    """The reported step, the median of the slowest rank at every step, is longer than each rank's own median."""
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
def test_the_strategy_text_has_the_given_options_and_the_chosen_micro_batches(strategy: str, text: str) -> None:
    assert strategy_with_microbatches(strategy_of(strategy), 16) == text


def test_ranks_on_hosts_with_different_clocks_start_together() -> None:
    """Ranks on the same host keep their offsets to each other."""
    spans_by_rank = [
        [Span(0, "forward", 5.0, 1.0), Span(0, "backward", 6.0, 2.0)],
        [Span(1, "forward", 5.5, 1.0)],
        [Span(2, "forward", 100_005.0, 1.0)],
    ]
    outcomes = [Outcome("made", 8, 1, "eager", "device", 1, spans=spans) for spans in spans_by_rank]
    assert [(span.rank, span.start) for span in timeline_of(outcomes).spans] == [(0, 0.0), (0, 1.0), (1, 0.5), (2, 0.0)]


def stepped(*seconds: float, warm_up: int = 0, resumed_at: int = 0) -> Outcome:
    """Outcome of a run over 10 samples, whose batches have 4, 4 and 2 samples."""
    outcome = Outcome("made", 10, 1, "eager", "device", len(seconds), resumed_at=resumed_at)
    outcome.all_seconds, outcome.step_seconds = list(seconds), list(seconds[warm_up:])
    outcome.losses = [1.0] * len(seconds)
    return outcome


def test_a_short_last_batch_counts_its_own_samples() -> None:
    assert [samples for _, _, samples in curve_of(stepped(*[1.0] * 4), 4)] == [4, 4, 2, 4]
    assert curve_of(stepped(1.0, 2.0, resumed_at=5), 4) == [(1.0, 1.0, 2), (3.0, 1.0, 4)]


def test_samples_per_second_includes_slow_steps() -> None:
    """One of the timed steps takes ten times as long, which the median step does not show."""
    outcomes = [stepped(9.0, 1.0, 1.0, 10.0, warm_up=1), stepped(9.0, 1.0, 2.0, 1.0, warm_up=1)]
    assert samples_per_second(outcomes, 4) == pytest.approx((4 + 2 + 4) / (1.0 + 1.0 + 10.0))
    assert samples_per_second([stepped(9.0, warm_up=1)], 4) is None


def test_memory_of_dead_workers_is_none() -> None:
    alive = [Outcome("made", 10, 1, "eager", "device", 1, worker=worker, peak_memory_bytes=worker) for worker in (1, 3)]
    for outcome in alive:
        outcome.footprint, outcome.updates = Footprint((4,), 4, 4, 4), [Update(0, 0, 1, 1.0, 0.0, 1.0)]
    request = Request("tests.tiny:float32", strategy_of("parameter-server-async"), Settings(4))
    memory = memory_of(request, Placement(4, "cpu"), alive)
    assert memory.measured_by_rank == [None, 1, None, 3]


@pytest.mark.parametrize(
    ("strategy", "devices", "microbatches", "norm_group"),
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
def test_a_note_says_which_samples_batch_norm_sees_at_a_time(
    strategy: str, devices: int, microbatches: int | None, norm_group: str
) -> None:
    outcome = Outcome("made", 10, 1, "eager", "device", 1)
    outcome.footprint = Footprint((4,), 4, 4, 4, microbatches=microbatches, norms_batches=True)
    request = Request("tests.tiny:float32", strategy_of(strategy), Settings(4))
    notes = [note for note in notes_on(request, Placement(devices, "cpu"), [outcome]) if "batch norm" in note]
    expected = f"batch norm sees {norm_group} at a time: weights differ slightly from those of one device"
    assert notes == ([expected] if norm_group else [])


@pytest.mark.parametrize(
    ("strategy", "slow", "is_named"),
    [
        ("mirrored", {"forward": 2.0, "backward": 2.0}, True),
        ("mirrored", {"forward": 1.0, "backward": 1.1}, False),
        ("data-parallel", {"forward": 1.0, "backward": 1.0, "update": 5.0}, False),  # the default device updates
        ("pipeline", {"forward": 2.0, "backward": 2.0}, False),  # stages differ, and the note on idle time says so
    ],
)
def test_a_straggler_is_a_rank_that_computes_longer_on_the_whole_model(
    strategy: str, slow: dict[str, float], is_named: bool
) -> None:
    ranks = (slow, {"forward": 1.0, "backward": 1.0})
    outcomes = [Outcome("made", 8, 1, "eager", "device", 1, phases=phases) for phases in ranks]
    assert any("rank 0 is a straggler" in note for note in straggler_notes(strategy_of(strategy), outcomes)) is is_named
