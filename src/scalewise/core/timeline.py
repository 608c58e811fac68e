"""Timeline of a step: its phases and when each operation ran, simulated or recorded."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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
