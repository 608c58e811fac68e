"""Layers: consecutive stages of the model on different devices, one batch at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from scalewise.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.schedules import schedule_of
from scalewise.strategies.stage_cuts import Balance, check_cut, stage_ranges
from scalewise.strategies.stages_plan import StagesPlan
from scalewise.strategies.strategy import NAMED, Backend


@dataclass(frozen=True)
class Layers:
    """The survey's model parallelism: while one of p devices works, the others idle, (p-1)/p of the time."""

    name: ClassVar[str] = "layers"
    summary: ClassVar[str] = "consecutive layers on different devices, one batch at a time (model parallelism)"
    exact: ClassVar[bool] = True
    one_model: ClassVar[bool] = True

    cut: str = field(default="", metadata={NAMED: "each begins a stage"})
    """Modules that begin the second, third, ... stage, cut before each: 'encoder.3+decoder.1'; empty: balanced."""
    balance: Balance = "counted"
    """Stages are equal in counted flops and bytes, or in seconds that one device is measured to take for every part."""

    def __post_init__(self) -> None:
        check_cut(self.cut)

    def ranges(self, footprint: Footprint, devices: int, samples: int) -> list[range]:
        """The sections of every stage, for so many samples at a time."""
        known = footprint
        return stage_ranges(known.sections, [samples] * devices, self.cut, known.room_bytes, known.state_copies)

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        builder = PlanBuilder()
        ranges = self.ranges(footprint, devices, -(-batch // (footprint.microbatches or 1)))
        stages = StagesPlan(footprint, ranges, range(devices), backend, batch, notices=True)
        stages.add_update(builder, stages.add_to(builder, schedule_of("gpipe", devices, 1, 1)), batch)
        return builder.plan()
