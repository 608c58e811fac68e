"""What a rank tells of a run: while it goes on, and at its end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from scalewise.plan import Footprint
from scalewise.prediction.held import LayerMemory
from scalewise.step.copies import Copied
from scalewise.timeline import Span
from scalewise.tracing.steps import StepTraffic


@dataclass(frozen=True)
class Report:
    """What a rank tells of a run under way."""

    steps_done: int
    steps: int
    epoch: int
    loss: float | None = None


@dataclass(frozen=True)
class Update:
    """One update by one asynchronous worker; moments are of the machine's monotonic clock."""

    ticket: int
    epoch: int
    samples: int
    loss: float
    started: float
    ended: float


@dataclass
class Outcome:
    """What one rank brings back."""

    source: str
    samples: int
    parameters: int
    execution: str
    load: str
    steps: int
    why_streamed: str = ""
    loss: float = math.nan
    losses: list[float] = field(default_factory=list)
    """Of every step, before its update."""
    accuracy: float | None = None
    epoch_seconds: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    """After the warm-up."""
    all_seconds: list[float] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    peak_memory_bytes: int | None = None
    traffic: StepTraffic = field(default_factory=StepTraffic)
    copied: Copied | None = None
    """Between host memory and the device, of a strategy that counts its copies."""
    footprint: Footprint | None = None
    layers: tuple[LayerMemory, ...] = ()
    """What each holds of the device, over the samples that a rank works on at a time; empty: not known."""
    interrupted: bool = False
    resumed_at: int = 0
    updates: list[Update] = field(default_factory=list)
    """Of an asynchronous worker, as are the next two."""
    acknowledged: int = 0
    worker: int = 0
    """Its number: those of workers that died are missing."""
