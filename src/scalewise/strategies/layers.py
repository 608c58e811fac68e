"""Layers: consecutive stages of the model on different devices, one batch at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from scalewise.hardware.collectives import Backend
from scalewise.strategies.base import NAMED, Strategy
from scalewise.strategies.partitioning import Balance, check_cut, stage_ranges
from scalewise.strategies.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.rank_memory import LayerMemories, RankMemory, TrainingRun
from scalewise.strategies.stage_memory import memory_of_stages
from scalewise.strategies.stage_plan import StagesPlan, schedule_of


@dataclass(frozen=True)
class Layers(Strategy):
    """Model parallelism without micro-batches: each of p devices is idle (p-1)/p of the time."""

    name: ClassVar[str] = "layers"
    summary: ClassVar[str] = "consecutive layers on different devices, one batch at a time (model parallelism)"
    exact: ClassVar[bool] = True
    one_model: ClassVar[bool] = True
    in_stages: ClassVar[bool] = True

    cut: str = field(default="", metadata={NAMED: "each begins a stage"})
    """Modules that begin the second, third, ... stage, as 'encoder.3+decoder.1'; empty: balanced stages."""
    balance: Balance = "counted"
    """counted: balance stages by flops and bytes. measured: by the measured seconds of each section on one device."""

    def __post_init__(self) -> None:
        check_cut(self.cut)

    def ranges(self, footprint: Footprint, devices: int, samples: int) -> list[range]:
        """Sections of every stage, with `samples` samples at a time."""
        return stage_ranges(
            footprint.sections, [samples] * devices, self.cut, footprint.room_bytes, footprint.state_copies
        )

    def seen_at_once(self, devices: int, microbatches: int | None) -> str:  # noqa: ARG002
        return ""

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        builder = PlanBuilder()
        ranges = self.ranges(footprint, devices, -(-batch // (footprint.microbatches or 1)))
        stages = StagesPlan(footprint, ranges, range(devices), backend, batch, notices=True)
        stages.add_update(builder, stages.add_to(builder, schedule_of("gpipe", devices, 1, 1)), batch)
        return builder.plan()

    def samples_at_once(self, run: TrainingRun) -> int:
        return run.part_of_batch

    def rank_memory(self, rank: int, run: TrainingRun, layers: LayerMemories) -> RankMemory:
        """Parts of an accumulated batch run one after the other in the same memory."""
        samples = run.part_of_batch
        ranges = self.ranges(run.footprint, run.devices, samples)
        [forward, backward] = schedule_of("gpipe", run.devices, 1, 1)[rank]
        work = [forward, backward] * (2 if run.accumulate > 1 else 1)
        return memory_of_stages(rank, run, layers, samples, work, ranges)
