"""When each operation ran, simulated from a plan or recorded from a real run: one format for both."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scalewise.atomic import write_atomically
from scalewise.phases import BETWEEN_DEVICES, PHASES


@dataclass(frozen=True)
class Span:
    """One stretch of one rank's time. `lane` separates what runs beside the compute ('compute', 'network')."""

    rank: int
    phase: str
    start: float
    seconds: float
    lane: str = "compute"
    step: int = 0


@dataclass(frozen=True)
class Timeline:
    """Spans of some steps; seconds count from the first span's start."""

    spans: tuple[Span, ...]

    @cached_property
    def phases(self) -> dict[str, float]:
        """Seconds per phase and step on the rank that sets the pace: exclusive, so they sum to the step."""
        totals: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for span in self.spans:
            if span.lane == "compute":
                totals[span.rank][span.phase] += span.seconds
        if not totals:
            return {}
        steps = len({span.step for span in self.spans})
        slowest = max(totals.values(), key=lambda phases: sum(phases.values()))
        return {phase: slowest[phase] / steps for phase in PHASES if phase in slowest}

    def write_chrome_trace(self, path: Path) -> None:
        """Opens in Perfetto and chrome://tracing: a process per rank, a thread per lane."""
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
