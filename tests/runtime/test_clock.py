"""Tests of step and phase times: warm-up, sums, noted moments, forgotten steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Any

import pytest

from scalewise.runtime.clock import SAMPLED_STEPS, TRACED_STEPS, EventClock, HostClock, Times


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


def test_phases_are_shares_of_the_median_step_in_order() -> None:
    times = Times()
    steps = [step(0.0, ("update", 1.0), ("forward", 1.0 + seconds)) for seconds in (2.0, 3.0, 100.0, 1.0)]
    times.add([0.0] * 4, dict(enumerate(steps)))
    assert times.phases == {"forward": 2.5, "update": 1.0}
    assert list(times.phases) == ["forward", "update"]


def test_repeated_phases_of_a_step_are_added() -> None:
    times = Times()
    times.add([4.0], {0: step(0.0, ("forward", 1.0), ("backward", 2.0), ("forward", 3.0), ("backward", 4.0))})
    assert times.phases == {"forward": 2.0, "backward": 2.0}


def test_without_steps_there_are_no_phases() -> None:
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


def test_a_phase_can_end_at_a_noted_moment() -> None:
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


def test_collecting_without_steps_is_possible() -> None:
    times = Times()
    HostClock(times).collect()
    assert times.all_seconds == []


@pytest.mark.parametrize("kind", [HostClock, EventClock])
def test_forgetting_a_step_keeps_earlier_steps(
    kind: type[HostClock | EventClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = count()
    monkeypatch.setattr("scalewise.runtime.clock._event", lambda: FakeEvent(next(moments)))
    monkeypatch.setattr("scalewise.runtime.clock.perf_counter", lambda: float(next(moments)))
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
    # A step of HostClock ends with its last phase, a step of EventClock where the next one starts.
    assert times.all_seconds == ([1.0, 1.0] if kind is HostClock else [2.0, 2.0])
    assert list(times.phases) == ["forward"]


def test_the_phases_of_a_captured_step_are_timed_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three eager steps, then a captured graph; the graph with events is replayed once per collection."""
    moments = count()
    monkeypatch.setattr("scalewise.runtime.clock._event", lambda: FakeEvent(next(moments)))
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    times = Times(warm_up=5)
    clock = EventClock(times)
    graph_events: list[Any] = []
    timed: list[int] = []
    for step in range(16):
        clock.start()
        if step < 3:
            clock.lap("forward")
        elif clock.wants(graph_events):
            graph_events += [("", FakeEvent(next(moments))), ("forward", FakeEvent(next(moments)))]
            timed.append(step)
    clock.collect()
    assert timed == [5]
    assert times.phases["forward"] > 0


def test_steps_of_zero_seconds_have_phases_of_zero_seconds() -> None:
    times = Times()
    times.add([0.0] * 3, {step: [("", 1.0), ("forward", 1.0), ("update", 1.0)] for step in range(3)})
    assert times.phases == {"forward": 0.0, "update": 0.0}


@dataclass
class FakeEvent:
    seconds: float

    def elapsed_time(self, later: FakeEvent) -> float:
        """Return milliseconds, as torch.cuda.Event does."""
        return 1e3 * (later.seconds - self.seconds)
