"""Pipeline: stages on different devices that process micro-batches at the same time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from scalewise.hardware.collectives import Backend
from scalewise.strategies.base import IF_NONE, NAMED, Strategy
from scalewise.strategies.microbatches import Filling, PipelineOptions, filling_of
from scalewise.strategies.partitioning import Balance, check_cut
from scalewise.strategies.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.rank_memory import LayerMemories, RankMemory, TrainingRun
from scalewise.strategies.stage_memory import memory_of_stages
from scalewise.strategies.stage_plan import Kind, StagesPlan, schedule_of

INTERLEAVED_STAGES = 2
"""Stages per device with the interleaved schedule."""


@dataclass(frozen=True)
class Pipeline(Strategy):
    """Pipeline parallelism with torch.distributed.pipelining.

    With m micro-batches, each of p devices is idle (p-1)/(m+p-1) of the time.
    """

    name: ClassVar[str] = "pipeline"
    summary: ClassVar[str] = (
        "stages on different devices, working on micro-batches in parallel (torch.distributed.pipelining)"
    )
    exact: ClassVar[bool] = True
    one_model: ClassVar[bool] = True
    in_stages: ClassVar[bool] = True
    pads_last_batch: ClassVar[bool] = True
    for_large_models: ClassVar[bool] = True
    splits_batch: ClassVar[bool] = True

    microbatches: int | None = field(default=None, metadata={IF_NONE: "chosen automatically if not given"})
    """Number of micro-batches; a batch that does not divide evenly is padded with samples of zero weight."""
    schedule: Kind = "1f1b"
    """gpipe: all forward passes, then all backward passes. 1f1b: backward as early as possible, which keeps fewer
    activations. interleaved: two stages per device, with half the idle time and twice the messages."""
    checkpoint: bool = False
    """Activation checkpointing: keep only the inputs of a stage, and recompute its activations for backward."""
    cut: str = field(default="", metadata={NAMED: "each begins a stage"})
    """Modules that begin the second, third, ... stage, as 'encoder.3+decoder.1'; empty: balanced stages."""
    balance: Balance = "counted"
    """counted: balance stages by flops and bytes. measured: by the measured seconds of each section on one device."""

    def __post_init__(self) -> None:
        check_cut(self.cut)

    def stages_each(self, devices: int) -> int:
        """Number of stages per device; one on a single device, where older versions of torch would send to itself."""
        return INTERLEAVED_STAGES if self.schedule == "interleaved" and devices > 1 else 1

    def filling(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Filling:
        """Choose the micro-batches and stages."""
        options = PipelineOptions(
            self.schedule, self.stages_each(devices), self.microbatches, self.cut, self.checkpoint
        )
        return filling_of(options, footprint, devices, batch, backend)

    @property
    def plans_microbatches(self) -> bool:
        return self.microbatches is None

    def seen_at_once(self, devices: int, microbatches: int | None) -> str:
        return "" if devices == 1 or microbatches == 1 else "one micro-batch"

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        builder = PlanBuilder()
        filling = self.filling(footprint, devices, batch, backend)
        stages = StagesPlan(
            footprint,
            filling.ranges,
            range(devices),
            backend,
            filling.size,
            recompute=self.checkpoint,
            when_due=self.schedule != "interleaved",
            sender_waits=self.schedule == "1f1b",
        )
        ends = stages.add_to(builder, schedule_of(self.schedule, devices, self.stages_each(devices), filling.number))
        stages.add_update(builder, ends, batch)
        return builder.plan()

    def samples_at_once(self, run: TrainingRun) -> int:
        return self._filling_of(run).size

    def rank_memory(self, rank: int, run: TrainingRun, layers: LayerMemories) -> RankMemory:
        filling = self._filling_of(run)
        work = schedule_of(self.schedule, run.devices, self.stages_each(run.devices), filling.number)[rank]
        return memory_of_stages(
            rank,
            run,
            layers,
            filling.size,
            work,
            filling.ranges,
            recompute=self.checkpoint,
            keeps_sent=self.schedule != "1f1b",
        )

    def _filling_of(self, run: TrainingRun) -> Filling:
        return self.filling(run.footprint, run.devices, run.batch, run.backend)
