"""Where a step's seconds go, without slowing it: marks on the CPU, events on sampled steps on a GPU."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Protocol

import torch

from scalewise.phases import PHASES
from scalewise.step.settings import MOST_PENDING_STEPS
from scalewise.timeline import Span

Marks = list[tuple[str, float]]
SAMPLED_STEPS, TRACED_STEPS, MOST_BESIDE = 1024, 32, 4096
"""The latest steps that phases are computed from, those that a trace shows, and reductions beside them."""


class Clock(Protocol):
    """Told when a step starts and when each of its phases ends; read once per epoch.

    `note` remembers a moment inside a phase; `lap(phase, noted=True)` says that the phase ended at the last one noted.
    `close` says that no step follows for now; one that was started and did not go on is forgotten.
    `forget` says that the one that was started is none, however far it went.
    """

    def start(self) -> None: ...
    def lap(self, phase: str, *, noted: bool = False) -> None: ...
    def note(self) -> None: ...
    def close(self) -> None: ...
    def forget(self) -> None: ...
    def collect(self) -> None: ...


@dataclass
class Times:
    """What the clocks collected after the warm-up: seconds of every step, and the phases of the sampled ones."""

    warm_up: int = 0
    """Steps at the start that are not counted."""
    all_seconds: list[float] = field(default_factory=list)
    """Of every step, the warm-up's too."""
    sampled: deque[list[tuple[str, float, float]]] = field(default_factory=lambda: deque(maxlen=SAMPLED_STEPS))
    """Of the latest sampled steps: (phase, start, seconds)."""
    beside: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_BESIDE))
    """Start and end of the latest reductions beside backward, where they are noted."""

    def add(self, seconds: list[float], sampled: dict[int, Marks]) -> None:
        """Add steps in their order; `sampled` gives, by position, a step's start and the moment each phase ended."""
        skip = max(0, self.warm_up - len(self.all_seconds))
        self.all_seconds += seconds
        self.sampled.extend(
            [(phase, before, moment - before) for (_, before), (phase, moment) in pairwise(marks)]
            for position, marks in sampled.items()
            if position >= skip
        )

    @property
    def step_seconds(self) -> list[float]:
        """Of every step after the warm-up."""
        return self.all_seconds[self.warm_up :]

    @property
    def phases(self) -> dict[str, float]:
        """Seconds per step: the median of the sampled steps, shared out as in the fifth of them around it."""
        ordered = sorted(self.sampled, key=_seconds)
        trimmed = max(2 * len(ordered) // 5, 1) if len(ordered) > 2 else 0
        middle = ordered[trimmed : len(ordered) - trimmed]
        totals: dict[str, float] = defaultdict(float)
        for spans in middle:
            for phase, _, seconds in spans:
                totals[phase] += seconds
        scale = median(map(_seconds, ordered)) / sum(totals.values()) if totals else 0.0
        return {phase: totals[phase] * scale for phase in PHASES if phase in totals}

    def spans(self, rank: int) -> list[Span]:
        """The latest steps as a timeline of this rank, and what was reduced beside them."""
        traced = list(self.sampled)[-TRACED_STEPS:]
        spans = [
            Span(rank, phase, start, seconds, step=step)
            for step, marks in enumerate(traced)
            for phase, start, seconds in marks
        ]
        for step, marks in enumerate(traced):
            (_, first, _), (_, last, seconds) = marks[0], marks[-1]
            free = first
            for start, end in sorted(self.beside):
                if first <= start < last + seconds:
                    # One after the other: a bucket that is ready early waits for those before it.
                    begun, free = max(start, free), max(end, free)
                    spans.append(Span(rank, "reduce", begun, free - begun, lane="network", step=step))
        return spans


def _seconds(spans: list[tuple[str, float, float]]) -> float:
    return sum(seconds for _, _, seconds in spans)


class HostClock:
    """For CPU ranks, where work is done when the call returns: a mark costs a tenth of a microsecond."""

    MOST_MARKS = 50_000

    def __init__(self, times: Times) -> None:
        self.times = times
        self.marks: Marks = []
        self.noted = 0.0
        self.after_lap: Callable[[], None] | None = None
        """Of whoever looks at something else between the phases of the first steps."""

    def start(self) -> None:
        if len(self.marks) > self.MOST_MARKS:
            self.collect()
        self.marks.append(("", perf_counter()))

    def lap(self, phase: str, *, noted: bool = False) -> None:
        self.marks.append((phase, self.noted if noted else perf_counter()))
        if self.after_lap:
            self.after_lap()

    def note(self) -> None:
        self.noted = perf_counter()

    def close(self) -> None:
        if self.marks and self.marks[-1][0] == "":
            self.marks.pop()

    def forget(self) -> None:
        while self.marks and self.marks.pop()[0] != "":
            pass

    def collect(self) -> None:
        """Turn the marks into steps; a step ends at its last mark."""
        starts = [position for position, (phase, _) in enumerate(self.marks) if phase == ""]
        steps = [self.marks[begin:end] for begin, end in pairwise([*starts, len(self.marks)])]
        self.times.add([step[-1][1] - step[0][1] for step in steps], dict(enumerate(steps)))
        self.marks.clear()


class EventClock:
    """For GPUs: an event between steps; between phases only in the first steps and then in every 16th."""

    SAMPLED_AT_FIRST, EVERY = 32, 16

    def __init__(self, times: Times) -> None:
        self.times = times
        self.starts: list[torch.cuda.Event] = []
        self.ends: dict[int, torch.cuda.Event] = {}
        """Of steps that no other followed at once; else a step ends where the next one starts."""
        self.sampled: dict[int, list[tuple[str, torch.cuda.Event]]] = {}
        self.current: list[tuple[str, torch.cuda.Event]] | None = None
        self.noted: torch.cuda.Event | None = None
        self.went_on = False
        self.collected_seconds = 0.0

    def start(self) -> None:
        if len(self.starts) > 2 * MOST_PENDING_STEPS:
            self.collect()
        event = _event()
        position = len(self.starts)
        self.starts.append(event)
        self.current = None
        self.went_on = False
        if position < self.SAMPLED_AT_FIRST or position % self.EVERY == 0:
            self.current = self.sampled[position] = [("", event)]

    def lap(self, phase: str, *, noted: bool = False) -> None:
        self.went_on = True
        if self.current is not None:
            self.current.append((phase, self.noted if noted and self.noted else _event()))

    def note(self) -> None:
        if self.current is not None:
            self.noted = _event()

    def close(self) -> None:
        if not self.starts:
            return
        if self.went_on:
            self.ends.setdefault(len(self.starts) - 1, _event())
        else:
            self.forget()

    def forget(self) -> None:
        if not self.starts:
            return
        unused = self.starts.pop()
        self.sampled.pop(len(self.starts), None)
        self.ends.setdefault(len(self.starts) - 1, unused)
        self.current = None
        self.went_on = True

    def wants(self, events: list[tuple[str, torch.cuda.Event]]) -> bool:
        """Whether to replay the twin of a graph that records `events`: their times are read once per collection."""
        self.went_on = True
        if self.current is None or any(events is taken for taken in self.sampled.values()):
            return False
        self.sampled[len(self.starts) - 1] = events
        return True

    def collect(self) -> None:
        """Waits for the device: called between epochs, seldom inside one."""
        self.close()
        if not self.starts:
            return
        torch.cuda.synchronize()
        first = self.starts[0]
        ends = [self.ends.get(position, following) for position, following in enumerate(self.starts[1:])]
        ends.append(self.ends[len(self.starts) - 1])
        # A step lasts until the next one starts, and so does its last phase.
        whole = {at: [*marks[:-1], (marks[-1][0], ends[at])] for at, marks in self.sampled.items() if len(marks) > 1}
        self.times.add(
            [begin.elapsed_time(end) / 1e3 for begin, end in zip(self.starts, ends, strict=True)],
            {
                at: [(phase, self.collected_seconds + first.elapsed_time(event) / 1e3) for phase, event in marks]
                for at, marks in whole.items()
            },
        )
        self.collected_seconds += first.elapsed_time(ends[-1]) / 1e3
        self.starts, self.ends, self.sampled = [], {}, {}


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def make_clock(device: torch.device, times: Times) -> Clock:
    """The clock that fits the device."""
    return EventClock(times) if device.type == "cuda" else HostClock(times)
