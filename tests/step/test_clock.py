"""Seconds of steps and phases: the warm-up is dropped, phases sum to the step, a note moves a phase's end."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from time import perf_counter

import pytest

from scalewise.step.clock import SAMPLED_STEPS, TRACED_STEPS, EventClock, HostClock, Times


def step(start: float, *laps: tuple[str, float]) -> list[tuple[str, float]]:
    return [("", start), *laps]


def test_times_drop_the_warm_up_over_several_collections() -> None:
    times = Times(warm_up=3)
    marks = {position: step(0.0, ("forward", 1.0 + position)) for position in range(2)}
    times.add([1.0, 2.0], marks)
    assert (times.step_seconds, len(times.sampled)) == ([], 0)
    times.add([3.0, 4.0], marks)
    assert (times.all_seconds, times.step_seconds) == ([1.0, 2.0, 3.0, 4.0], [4.0])
    assert list(times.sampled) == [[("forward", 0.0, 2.0)]]


def test_phases_are_means_over_the_middle_half_in_their_order() -> None:
    times = Times()
    steps = [step(0.0, ("update", 1.0), ("forward", 1.0 + seconds)) for seconds in (2.0, 3.0, 100.0, 1.0)]
    times.add([0.0] * 4, dict(enumerate(steps)))
    assert times.phases == {"forward": 2.5, "update": 1.0}
    assert list(times.phases) == ["forward", "update"]


def test_a_phase_that_comes_twice_in_a_step_is_added_up() -> None:
    times = Times()
    times.add([4.0], {0: step(0.0, ("forward", 1.0), ("backward", 2.0), ("forward", 3.0), ("backward", 4.0))})
    assert times.phases == {"forward": 2.0, "backward": 2.0}


def test_no_steps_no_phases() -> None:
    assert Times().phases == {}
    assert Times().spans(0) == []


def test_spans_are_the_latest_steps() -> None:
    times = Times()
    steps = TRACED_STEPS + 8
    times.add([1.0] * steps, {position: step(position, ("forward", position + 1.0)) for position in range(steps)})
    spans = times.spans(rank=2)
    assert len(spans) == TRACED_STEPS
    assert (spans[0].start, spans[0].step, spans[0].rank) == (8, 0, 2)
    assert (spans[-1].start, spans[-1].seconds, spans[-1].step) == (steps - 1, 1.0, TRACED_STEPS - 1)


def test_the_memory_of_long_runs_is_bounded() -> None:
    times = Times()
    clock = HostClock(times)
    for _ in range(HostClock.MOST_MARKS):
        clock.start()
        clock.lap("forward")
    clock.collect()
    assert len(times.all_seconds) == HostClock.MOST_MARKS
    assert len(times.sampled) == SAMPLED_STEPS


def test_host_clock_laps_sum_to_the_step() -> None:
    times = Times()
    clock = HostClock(times)
    before = perf_counter()
    for _ in range(3):
        clock.start()
        clock.lap("load")
        clock.lap("forward")
    clock.collect()
    after = perf_counter()
    assert len(times.step_seconds) == 3
    assert 0 < sum(times.step_seconds) <= after - before
    for seconds, spans in zip(times.step_seconds, times.sampled, strict=True):
        assert [phase for phase, _, _ in spans] == ["load", "forward"]
        assert sum(part for _, _, part in spans) == pytest.approx(seconds, abs=1e-12)


def test_a_noted_moment_ends_the_phase_before_it() -> None:
    times = Times()
    clock = HostClock(times)
    clock.start()
    clock.note()
    noted = clock.noted
    clock.lap("backward", noted=True)
    clock.lap("reduce")
    clock.collect()
    [[(_, start, backward), (_, reduce_start, _)]] = times.sampled
    assert start + backward == pytest.approx(noted, abs=1e-12)
    assert reduce_start == noted


def test_collecting_nothing_is_harmless() -> None:
    times = Times()
    HostClock(times).collect()
    assert times.all_seconds == []


@pytest.mark.parametrize("kind", [HostClock, EventClock])
def test_a_forgotten_step_leaves_those_before_it(
    kind: type[HostClock | EventClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = count()
    monkeypatch.setattr("scalewise.step.clock._event", lambda: FakeEvent(next(moments)))
    monkeypatch.setattr("scalewise.step.clock.perf_counter", lambda: float(next(moments)))
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    times = Times()
    clock = kind(times)
    for _ in range(2):
        clock.start()
        clock.lap("forward")
    clock.start()
    clock.lap("load")
    clock.lap("forward")
    clock.forget()
    clock.collect()
    # A host's step ends with its last phase, a GPU's where the next begins.
    assert times.all_seconds == ([1.0, 1.0] if kind is HostClock else [2.0, 2.0])
    assert list(times.phases) == ["forward"]


@dataclass
class FakeEvent:
    seconds: float

    def elapsed_time(self, later: FakeEvent) -> float:
        """In milliseconds."""
        return 1e3 * (later.seconds - self.seconds)
