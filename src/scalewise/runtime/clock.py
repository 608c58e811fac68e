"""Measure the phases of a step with little overhead, and the time at which each gradient is complete."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from statistics import median
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor, nn

from scalewise.core.timeline import PHASES, Span
from scalewise.core.training_options import MOST_PENDING_STEPS
from scalewise.models.workload import Workload

Marks = list[tuple[str, float]]
SAMPLED_STEPS, TRACED_STEPS, MAX_OVERLAPPED = 1024, 32, 4096
"""Number of latest steps that phases are computed from, of steps in a trace, and of overlapped reductions."""


class Clock(Protocol):
    """Records the start of each step and the end of each of its phases; read once per epoch.

    `start` begins a step and `lap(phase)` ends a phase. `note` remembers a moment inside a phase, and
    `lap(phase, noted=True)` ends the phase at that moment. `close` ends the last step, or discards it if it has no
    phases. `forget` discards the last step in any case. `collect` adds the recorded steps to the `Times`.
    """

    def start(self) -> None: ...
    def lap(self, phase: str, *, noted: bool = False) -> None: ...
    def note(self) -> None: ...
    def close(self) -> None: ...
    def forget(self) -> None: ...
    def collect(self) -> None: ...


@dataclass
class Times:
    """Seconds of every step, and the phases of sampled steps after the warm-up."""

    warm_up: int = 0
    """Number of first steps that are left out."""
    all_seconds: list[float] = field(default_factory=list)
    """Seconds of every step, including the warm-up."""
    sampled: deque[list[tuple[str, float, float]]] = field(default_factory=lambda: deque(maxlen=SAMPLED_STEPS))
    """Phases of the latest sampled steps as (phase, start, seconds)."""
    beside: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_OVERLAPPED))
    """Start and end of the latest reductions that overlap with backward, where they are recorded."""

    def add(self, seconds: list[float], sampled: dict[int, Marks]) -> None:
        """Add steps in order; `sampled` maps a step's position to its start and the end of each of its phases."""
        skip = max(0, self.warm_up - len(self.all_seconds))
        self.all_seconds += seconds
        self.sampled.extend(
            [(phase, begin, end - begin) for (_, begin), (phase, end) in pairwise(marks)]
            for position, marks in sampled.items()
            if position >= skip
        )

    @property
    def step_seconds(self) -> list[float]:
        """Seconds of every step after the warm-up."""
        return self.all_seconds[self.warm_up :]

    @property
    def phases(self) -> dict[str, float]:
        """Median seconds per step, divided among the phases as in the middle fifth of the sampled steps."""
        ordered = sorted(self.sampled, key=_seconds)
        trimmed = max(2 * len(ordered) // 5, 1) if len(ordered) > 2 else 0
        middle = ordered[trimmed : len(ordered) - trimmed]
        totals: dict[str, float] = defaultdict(float)
        for spans in middle:
            for phase, _, seconds in spans:
                totals[phase] += seconds
        total = sum(totals.values())
        scale = median(map(_seconds, ordered)) / total if total > 0 else 0.0
        return {phase: totals[phase] * scale for phase in PHASES if phase in totals}

    def spans(self, rank: int) -> list[Span]:
        """Return a timeline of the latest steps of this rank and of the reductions that overlap with them."""
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
                    # Buckets are reduced one after the other: a bucket that is ready early waits for earlier ones.
                    begin, free = max(start, free), max(end, free)
                    spans.append(Span(rank, "reduce", begin, free - begin, lane="network", step=step))
        return spans


def _seconds(spans: list[tuple[str, float, float]]) -> float:
    return sum(seconds for _, _, seconds in spans)


class HostClock:
    """Clock of CPU ranks, where an operation is finished when its call returns; a mark takes 0.1 microseconds."""

    MOST_MARKS = 50_000

    def __init__(self, times: Times) -> None:
        self.times = times
        self.marks: Marks = []
        self.noted = 0.0

    def start(self) -> None:
        if len(self.marks) > self.MOST_MARKS:
            self.collect()
        self.marks.append(("", perf_counter()))

    def lap(self, phase: str, *, noted: bool = False) -> None:
        self.marks.append((phase, self.noted if noted else perf_counter()))

    def note(self) -> None:
        self.noted = perf_counter()

    def close(self) -> None:
        if self.marks and self.marks[-1][0] == "":
            self.marks.pop()

    def forget(self) -> None:
        while self.marks and self.marks.pop()[0] != "":
            pass

    def collect(self) -> None:
        """Convert the marks to steps, each of which ends at its last mark."""
        starts = [position for position, (phase, _) in enumerate(self.marks) if phase == ""]
        steps = [self.marks[begin:end] for begin, end in pairwise([*starts, len(self.marks)])]
        self.times.add([step[-1][1] - step[0][1] for step in steps], dict(enumerate(steps)))
        self.marks.clear()


class EventClock:
    """Clock of GPU ranks: records an event per step, and an event per phase in the first 32 and every 16th step."""

    SAMPLED_AT_FIRST, EVERY = 32, 16

    def __init__(self, times: Times) -> None:
        self.times = times
        self.starts: list[torch.cuda.Event] = []
        self.ends: dict[int, torch.cuda.Event] = {}
        """Ends of steps after which the loop paused; other steps end where the next one starts."""
        self.sampled: dict[int, list[tuple[str, torch.cuda.Event]]] = {}
        self.current: list[tuple[str, torch.cuda.Event]] | None = None
        self.noted: torch.cuda.Event | None = None
        self.has_phases = False
        self.collected_seconds = 0.0

    def start(self) -> None:
        if len(self.starts) > 2 * MOST_PENDING_STEPS:
            self.collect()
        event = _event()
        position = len(self.starts)
        self.starts.append(event)
        self.current = None
        self.has_phases = False
        if position < self.SAMPLED_AT_FIRST or position % self.EVERY == 0:
            self.current = self.sampled[position] = [("", event)]

    def lap(self, phase: str, *, noted: bool = False) -> None:
        self.has_phases = True
        if self.current is not None:
            self.current.append((phase, self.noted if noted and self.noted else _event()))

    def note(self) -> None:
        if self.current is not None:
            self.noted = _event()

    def close(self) -> None:
        if not self.starts:
            return
        if self.has_phases:
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
        self.has_phases = True

    def wants(self, events: list[tuple[str, torch.cuda.Event]]) -> bool:
        """Return whether to replay the CUDA graph that records `events`, instead of the one without events.

        True at most once per collection, because the events hold one step only, and never during the warm-up.
        """
        self.has_phases = True
        warming_up = len(self.times.all_seconds) + len(self.starts) <= self.times.warm_up
        if warming_up or self.current is None or any(events is recorded for recorded in self.sampled.values()):
            return False
        self.sampled[len(self.starts) - 1] = events
        return True

    def collect(self) -> None:
        """Convert the events to steps; waits for the device, so it is called between epochs and rarely within one."""
        self.close()
        if not self.starts:
            return
        torch.cuda.synchronize()
        first = self.starts[0]
        ends = [self.ends.get(position, following) for position, following in enumerate(self.starts[1:])]
        ends.append(self.ends[len(self.starts) - 1])
        # A step and its last phase last until the next step starts.
        complete = {at: [*marks[:-1], (marks[-1][0], ends[at])] for at, marks in self.sampled.items() if len(marks) > 1}
        self.times.add(
            [begin.elapsed_time(end) / 1e3 for begin, end in zip(self.starts, ends, strict=True)],
            {
                at: [(phase, self.collected_seconds + first.elapsed_time(event) / 1e3) for phase, event in marks]
                for at, marks in complete.items()
            },
        )
        self.collected_seconds += first.elapsed_time(ends[-1]) / 1e3
        self.starts, self.ends, self.sampled = [], {}, {}


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def make_clock(device: torch.device, times: Times) -> Clock:
    """Return a clock for the type of device."""
    return EventClock(times) if device.type == "cuda" else HostClock(times)


Moment = float | torch.cuda.Event


class Watched:
    """Records when each gradient is complete while `workload`, a copy of the given workload, trains.

    A mark takes less than a microsecond on a CPU and a few on a GPU.
    """

    def __init__(self, workload: Workload, device: torch.device) -> None:
        self.workload = replace(workload, model=self._model, loss=self._loss)
        self._inner = workload
        self._moment: Callable[[], Moment] = _gradient_event if device.type == "cuda" else perf_counter
        self._models = 0
        self._steps: list[list[Moment]] = []
        """Per backward pass: its start and the completion of each gradient."""
        self._trained: list[int | None] = []
        """Number of the model of each backward pass, in order of creation; None without gradients."""

    def ready(self) -> tuple[float, ...]:
        """Return the completion of each gradient as a fraction of backward, the median of all steps but the first."""
        passes = Counter(number for number in self._trained if number is not None)
        model = max(passes, key=passes.__getitem__, default=None)
        trained = [step for step, number in zip(self._steps, self._trained, strict=True) if number in (model, None)]
        most_moments = max(map(len, trained), default=0)
        steps = [_fractions(step) for step in trained[1:] or trained if len(step) == most_moments > 1]
        return tuple(accumulate((median(moments) for moments in zip(*steps, strict=True)), max))

    def _model(self) -> nn.Module:
        """Create a model and watch it. Other models may be created to check the workload or to count its operations."""
        model = self._inner.model()
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(self._mark, self._models))
        self._models += 1
        return model

    def _mark(self, model: int, _: Tensor) -> None:
        if self._trained[-1] in (None, model):
            self._trained[-1] = model
            self._steps[-1].append(self._moment())

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = self._inner.loss(outputs, targets)
        self._steps.append([self._moment()])
        self._trained.append(None)
        return loss


def _gradient_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _fractions(moments: Sequence[Moment]) -> list[float]:
    seconds = [_seconds_between(moments[0], moment) for moment in moments[1:]]
    return [moment / seconds[-1] if seconds[-1] > 0 else 1.0 for moment in seconds]


def _seconds_between(start: Moment, end: Moment) -> float:
    if isinstance(start, torch.cuda.Event):
        return start.elapsed_time(end)  # type: ignore[arg-type,no-any-return]
    return end - start  # type: ignore[operator]
