"""Timeline of a step: its phases and when each operation ran, simulated or recorded.

A `RecordedStep` is one measured step of all devices, small enough to be stored with every measurement.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from scalewise.core.files import write_atomically

PHASES = (
    "load",
    "scatter",
    "pull",
    "broadcast",
    "receive",
    "forward",
    "gather",
    "loss",
    "backward",
    "reduce",
    "push",
    "send",
    "update",
    "idle",
)

BETWEEN_DEVICES = frozenset({"scatter", "pull", "broadcast", "receive", "gather", "reduce", "push", "send"})
"""Phases in which a device sends, receives or waits for another device."""
ROUNDING = 1e-9
"""Relative difference of the times of two ranks that counts as none."""


def shared_out(phases: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Scale the phases so that they sum to `seconds`."""
    total = sum(phases.values())
    return {phase: phases[phase] / total * seconds for phase in PHASES if phase in phases} if total else {}


@dataclass(frozen=True)
class Span:
    """Interval in which one rank is in one phase. `lane` ('compute', 'network') separates concurrent intervals."""

    rank: int
    phase: str
    start: float
    seconds: float
    lane: str = "compute"
    step: int = 0


@dataclass(frozen=True)
class Timeline:
    """Spans of one or more steps; times count from the start of the first span."""

    spans: tuple[Span, ...]

    @cached_property
    def phases(self) -> dict[str, float]:
        """Seconds per phase of one step on the slowest rank; of several equally slow ones, on the first. Phases are
        exclusive, so they sum to the step time."""
        totals: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for span in self.spans:
            if span.lane == "compute":
                totals[span.rank][span.phase] += span.seconds
        if not totals:
            return {}
        steps = len({span.step for span in self.spans})
        longest = max(sum(phases.values()) for phases in totals.values())
        slowest = next(phases for phases in totals.values() if sum(phases.values()) >= longest * (1 - ROUNDING))
        return {phase: slowest[phase] / steps for phase in PHASES if phase in slowest}

    def write_chrome_trace(self, path: Path) -> None:
        """Write a trace for Perfetto and chrome://tracing: one process per rank, one thread per lane."""
        write_atomically(path, json.dumps({"traceEvents": list(_events(self.spans)), "displayTimeUnit": "ms"}).encode())


def _events(spans: Iterable[Span]) -> Iterator[dict[str, object]]:
    lanes: dict[tuple[int, str], int] = {}
    for span in spans:
        if (span.rank, span.lane) not in lanes:
            lanes[span.rank, span.lane] = len(lanes)
            yield {"ph": "M", "name": "process_name", "pid": span.rank, "args": {"name": f"rank {span.rank}"}}
            yield {
                "ph": "M",
                "name": "thread_name",
                "pid": span.rank,
                "tid": lanes[span.rank, span.lane],
                "args": {"name": span.lane},
            }
        yield {
            "ph": "X",
            "name": span.phase,
            "cat": "network" if span.phase in BETWEEN_DEVICES else "compute",
            "pid": span.rank,
            "tid": lanes[span.rank, span.lane],
            "ts": span.start * 1e6,
            "dur": span.seconds * 1e6,
            "args": {"step": span.step},
        }


def steps_by_seconds(timeline: Timeline) -> list[list[Span]]:
    """Return the spans of every step, the fastest step first."""
    steps: dict[int, list[Span]] = {}
    for span in timeline.spans:
        steps.setdefault(span.step, []).append(span)
    return sorted(steps.values(), key=lambda spans: sum(span.seconds for span in spans))


def typical_step(timeline: Timeline) -> tuple[Span, ...]:
    """Return the step with the median duration, starting at 0.

    GPU clocks start at 0 on every rank; such ranks are aligned at the start of the step.
    """
    ordered = steps_by_seconds(timeline)
    if not ordered:
        return ()
    chosen = ordered[len(ordered) // 2]
    starts = {rank: min(span.start for span in chosen if span.rank == rank) for rank in {s.rank for s in chosen}}
    longest = max(sum(span.seconds for span in chosen if span.rank == rank) for rank in starts)
    one_clock = max(starts.values()) - min(starts.values()) < longest / 2
    zero = min(starts.values())
    return tuple(replace(span, start=span.start - (zero if one_clock else starts[span.rank])) for span in chosen)


TICKS = 10_000
"""Times of a compact timeline are whole numbers of this fraction of its length."""
NARROWEST = 20
"""Ticks below which a span becomes a part of its neighbour."""
SHOWN_RANKS = 16
"""Largest number of ranks in a compact timeline."""
SHOWN_ROUNDS = 3
"""Rounds of asynchronous workers in a compact timeline."""
MOST_SPANS = 200
"""Largest number of spans of a recorded step: 4 KB of JSON."""
MOST_STEP_SECONDS = 1e9
"""Longest recorded step that is read."""


@dataclass(frozen=True)
class Lane:
    """What one rank computes or sends during a recorded step."""

    rank: int
    lane: Literal["compute", "network"]
    spans: list[tuple[str, int, int]]
    """Phase, start and length of each span, in ticks."""


@dataclass(frozen=True)
class RecordedStep:
    """One measured step of all devices; of asynchronous workers, a few rounds. Times are ticks: `seconds` / TICKS."""

    seconds: float
    lanes: list[Lane]

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= MOST_STEP_SECONDS:
            raise ValueError(f"timeline.seconds is {self.seconds}; it must be above 0, up to {MOST_STEP_SECONDS:g}")
        if sum(len(lane.spans) for lane in self.lanes) > MOST_SPANS:
            raise ValueError(f"timeline has more than {MOST_SPANS} spans")
        for lane in self.lanes:
            for phase, start, length in lane.spans:
                if phase not in PHASES:
                    raise ValueError(f"timeline has the phase '{phase}'; valid: {', '.join(PHASES)}")
                if not (start >= 0 and length >= 0 and start + length <= TICKS and 0 <= lane.rank < SHOWN_RANKS):
                    raise ValueError(f"timeline has a span outside 0 to {TICKS} ticks or {SHOWN_RANKS} ranks")


def recorded_step(timeline: Timeline, asynchronous: bool = False) -> RecordedStep | None:
    """Return the typical step of a timeline of several steps; None if the timeline has none.

    Args:
        asynchronous: whether workers have steps of their own; the result is then a few rounds of all workers.
    """
    spans = _last_rounds(timeline) if asynchronous else typical_step(timeline)
    spans = tuple(span for span in spans if span.rank < SHOWN_RANKS)
    seconds = max((span.start + span.seconds for span in spans), default=0.0)
    if seconds <= 0:
        return None
    by_lane: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for span in spans:
        by_lane[span.rank, span.lane].append(span)
    narrowest = NARROWEST
    while True:
        lanes = {key: in_ticks(by_lane[key], seconds, narrowest) for key in sorted(by_lane)}
        if sum(map(len, lanes.values())) <= MOST_SPANS:
            break
        narrowest *= 2
    return RecordedStep(
        seconds,
        [
            Lane(rank, "network" if lane == "network" else "compute", ticks)
            for (rank, lane), ticks in lanes.items()
            if ticks
        ],
    )


def _last_rounds(timeline: Timeline) -> tuple[Span, ...]:
    """Return the last rounds in which all asynchronous workers were at work, starting at 0."""
    by_rank: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        by_rank[span.rank].append(span)
    if not by_rank:
        return ()
    first = max(min(span.start for span in spans) for spans in by_rank.values())
    last = min(max(span.start + span.seconds for span in spans) for spans in by_rank.values())
    slowest = max(sum(span.seconds for span in spans) / len({s.step for s in spans}) for spans in by_rank.values())
    begin = max(first, last - SHOWN_ROUNDS * slowest)
    clipped = [(span, max(span.start, begin), min(span.start + span.seconds, last)) for span in timeline.spans]
    return tuple(replace(span, start=start - begin, seconds=end - start) for span, start, end in clipped if end > start)


def in_ticks(spans: Iterable[Span], seconds: float, narrowest: int = NARROWEST) -> list[tuple[str, int, int]]:
    """Return phase, start and length of each span in ticks; neighbours of one phase and very narrow spans are joined.

    Args:
        seconds: length of the timeline.
        narrowest: ticks below which a span becomes a part of its neighbour.
    """
    joined: list[tuple[str, int, int]] = []
    for span in sorted(spans, key=lambda span: span.start):
        start, end = (round(min(time, seconds) / seconds * TICKS) for time in (span.start, span.start + span.seconds))
        if joined:
            phase, begun, ended = joined[-1]
            if start <= ended + narrowest / 2 and (phase == span.phase or end - start < narrowest):
                joined[-1] = (phase, begun, max(ended, end))
                continue
        if end > start:
            joined.append((span.phase, start, end))
    return [(phase, start, end - start) for phase, start, end in joined]
