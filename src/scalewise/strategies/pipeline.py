"""Pipeline: stages of the model on different devices, which work on different micro-batches at the same time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from scalewise.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.filling import Filling, Shape, filling_of
from scalewise.strategies.schedules import Kind, schedule_of
from scalewise.strategies.stage_cuts import Balance, check_cut
from scalewise.strategies.stages_plan import StagesPlan
from scalewise.strategies.strategy import IF_NONE, NAMED, Backend

INTERLEAVED_STAGES = 2
"""Stages of every device where they are interleaved."""


@dataclass(frozen=True)
class Pipeline:
    """torch.distributed.pipelining. With m micro-batches p devices idle (p-1)/(m+p-1) of the time."""

    name: ClassVar[str] = "pipeline"
    summary: ClassVar[str] = "stages on different devices, kept busy by micro-batches (torch.distributed.pipelining)"
    exact: ClassVar[bool] = True
    one_model: ClassVar[bool] = True

    microbatches: int | None = field(default=None, metadata={IF_NONE: "as planned if not given"})
    """Parts of a batch; a batch that does not divide is padded with samples of no weight."""
    schedule: Kind = "1f1b"
    """gpipe: all forward, then all backward. 1f1b: backward as soon as can be, which holds fewer activations.
    interleaved: two stages on every device, for half the idle time and twice the messages."""
    checkpoint: bool = False
    """Keep only what a stage is given, and compute the rest once more for backward."""
    cut: str = field(default="", metadata={NAMED: "each begins a stage"})
    """Modules that begin the second, third, ... stage, cut before each: 'encoder.3+decoder.1'; empty: balanced."""
    balance: Balance = "counted"
    """Stages are equal in counted flops and bytes, or in seconds that one device is measured to take for every part."""

    def __post_init__(self) -> None:
        check_cut(self.cut)

    def stages_each(self, devices: int) -> int:
        """One device alone has nothing to interleave, and an older torch would have it send to itself."""
        return INTERLEAVED_STAGES if self.schedule == "interleaved" and devices > 1 else 1

    def filling(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Filling:
        """Its micro-batches and stages."""
        shape = Shape(self.schedule, self.stages_each(devices), self.microbatches, self.cut, self.checkpoint)
        return filling_of(shape, footprint, devices, batch, backend)

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        builder = PlanBuilder()
        filled = self.filling(footprint, devices, batch, backend)
        planned = StagesPlan(
            footprint,
            filled.ranges,
            range(devices),
            backend,
            filled.size,
            recompute=self.checkpoint,
            when_due=self.schedule != "interleaved",
            sender_waits=self.schedule == "1f1b",
        )
        ends = planned.add_to(builder, schedule_of(self.schedule, devices, self.stages_each(devices), filled.number))
        planned.add_update(builder, ends, batch)
        return builder.plan()
