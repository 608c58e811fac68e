"""Hybrid: stages or tensor parallelism within groups, data parallelism across groups."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import ClassVar

from scalewise.core.errors import UserError
from scalewise.hardware.collectives import Backend, Collective
from scalewise.strategies.base import AT_LEAST, IF_NONE, NAMED, Strategy
from scalewise.strategies.mirrored import buckets_of
from scalewise.strategies.partitioning import check_cut
from scalewise.strategies.pipeline import Pipeline
from scalewise.strategies.plan import Footprint, Plan, PlanBuilder, split
from scalewise.strategies.rank_memory import LayerMemories, RankMemory, TrainingRun, weights_of
from scalewise.strategies.stage_plan import StagesPlan, schedule_of
from scalewise.strategies.tensor import Tensor
from scalewise.strategies.tensor_splitting import (
    LayerSplit,
    Pass,
    Sum,
    backward_pass,
    forward_pass,
    part_bytes,
    split_layer_calls,
)


@dataclass(frozen=True)
class DeviceGroups:
    """Groups of consecutive devices. Only the first groups are planned; the last planned one represents the rest."""

    devices: int
    inside: int
    """Number of devices per group."""
    planned: int
    """Number of groups that are planned."""
    backend: Backend

    @property
    def count(self) -> int:
        return self.devices // self.inside

    @property
    def firsts(self) -> range:
        """First device of every planned group."""
        return range(0, self.planned * self.inside, self.inside)

    @property
    def all_planned(self) -> bool:
        return self.planned == self.count

    def represented(self, first: int) -> int:
        """Number of devices represented by the planned group that starts at device `first`."""
        return self.devices - first if first == self.firsts[-1] else self.inside

    def sum_inside(self, builder: PlanBuilder, first: int, bytes: int, after: tuple[int, ...]) -> tuple[int, ...]:
        """All-reduce between the devices of one group, at the same time as in the other groups."""
        collective = Collective("all_reduce", self.backend, self.inside, bytes, groups=self.count)
        return builder.collective("reduce", collective, after, first)

    def sum_across(self, builder: PlanBuilder, part: int, bytes: int, after: tuple[int, ...]) -> tuple[int, ...]:
        """All-reduce between the devices that hold the same part of the model, one of each group."""
        collective = Collective("all_reduce", self.backend, self.count, bytes, stride=self.inside)
        return builder.collective("reduce", collective, after, part)


@dataclass(frozen=True)
class Hybrid(Strategy):
    """Consecutive devices form a group that holds one copy of the model, as stages or by tensor parallelism.

    Gradients are all-reduced across groups, between the devices that hold the same part of the model.
    """

    name: ClassVar[str] = "hybrid"
    summary: ClassVar[str] = "tensor or pipeline parallelism within groups of devices, data parallelism between groups"
    exact: ClassVar[bool] = True

    tensor: int | None = field(default=None, metadata={AT_LEAST: 2, IF_NONE: "2 unless stages is given"})
    """Number of devices per group, with layers split as in `tensor`."""
    stages: int | None = field(default=None, metadata={AT_LEAST: 2, IF_NONE: "instead of tensor"})
    """Number of devices per group, each with one stage as in `pipeline`."""
    columns: str = ""
    """With tensor: layers to split by columns, as in `tensor`; empty: found automatically or declared by the model."""
    rows: str = ""
    """With tensor: layers to split by rows."""
    head_width: int = 1
    """With tensor: number of columns of a named layer that must stay on one device (the attention head width)."""
    cut: str = field(default="", metadata={NAMED: "each begins a stage"})
    """With stages: modules that begin the second, third, ... stage, as in `pipeline`; empty: balanced stages."""
    microbatches: int | None = field(default=None, metadata={IF_NONE: "with stages; chosen automatically if not given"})
    """With stages: number of micro-batches in a group's share of the batch."""

    def __post_init__(self) -> None:
        if self.tensor and self.stages:
            raise UserError(f"hybrid takes tensor={self.tensor} or stages={self.stages}, not both; leave one out")
        for_stages = self.stages is not None
        foreign = ("columns", "rows", "head_width") if for_stages else ("cut", "microbatches")
        for name in foreign:
            if getattr(self, name) != getattr(type(self), name):
                given, needed = ("stages", "tensor") if for_stages else ("tensor", "stages")
                raise UserError(
                    f"hybrid: {name}={getattr(self, name)} needs {needed}=..., but this hybrid has {given}="
                    f"{self.inside}; leave {name} out, or use {needed}={self.inside} instead of {given}={self.inside}"
                )
        check_cut(self.cut)

    @property
    def as_tensor(self) -> Tensor:
        """Strategy of a group that splits layers."""
        return Tensor(self.columns, self.rows, self.head_width)

    @property
    def as_pipeline(self) -> Pipeline:
        """Strategy of a group that has stages."""
        return Pipeline(self.microbatches, cut=self.cut)

    @property
    def inside(self) -> int:
        """Number of devices per group."""
        return self.stages or self.tensor or 2

    @property
    def in_stages(self) -> bool:
        return self.stages is not None

    @property
    def pads_last_batch(self) -> bool:
        """Whether groups are pipelines, which pad the last batch."""
        return self.in_stages

    @property
    def cuts_layers(self) -> bool:
        return self.stages is None

    def seen_at_once(self, devices: int, microbatches: int | None) -> str:
        if devices == 1:
            return ""
        if self.in_stages and microbatches != 1:
            return "one micro-batch"
        return "the samples of one group of devices" if devices > self.inside else ""

    def twin(self, devices: int) -> str | None:
        """`pipeline` or `tensor` if there is only one group, which does the same."""
        if devices != self.inside:
            return None
        return Pipeline.name if self.in_stages else Tensor.name

    def check_devices(self, devices: int) -> None:
        if devices % self.inside:
            raise UserError(
                f"hybrid:{'stages' if self.stages else 'tensor'}={self.inside} needs groups of {self.inside} devices: "
                f"--devices must be a multiple of {self.inside}, not {devices}"
            )

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        """Plan one step of all groups. Four devices in two groups:

        ranks 0, 1  forward |       | loss | backward |       | backward |                 | update
        links 0-1           | sum   |                 | sum   |                                       as in `tensor`
        links 0-2, 1-3                                | reduce bucket 0  | reduce bucket 1 |          as in `mirrored`
        """
        self.check_devices(devices)
        return self._plan_groups(footprint, batch, DeviceGroups(devices, self.inside, devices // self.inside, backend))

    def plan_first(
        self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo", followed: int = 1
    ) -> Plan:
        """Plan the first groups only, with collectives over all groups, so that the step is as long as that of all.

        With stages, about `followed` devices are planned, because stages of different groups share a host's links.
        """
        self.check_devices(devices)
        wanted = max(2, followed // self.inside) if self.stages else 1
        planned = min(wanted, devices // self.inside)
        return self._plan_groups(footprint, batch, DeviceGroups(devices, self.inside, planned, backend))

    def _plan_groups(self, footprint: Footprint, batch: int, groups: DeviceGroups) -> Plan:
        if self.stages:
            return _stages_plan(self.as_pipeline, footprint, groups, batch)
        return _SplitLayersPlan(
            footprint, self.as_tensor.layer_splits(footprint.matrices, self.inside), groups, batch
        ).plan()

    def samples_at_once(self, run: TrainingRun) -> int:
        return self._group_strategy.samples_at_once(self._run_of_group(run))

    def rank_memory(self, rank: int, run: TrainingRun, layers: LayerMemories) -> RankMemory:
        """A group holds one model. With several groups, DDP's buckets are added, or a copy of a stage's gradients."""
        memory = self._group_strategy.rank_memory(rank % self.inside, self._run_of_group(run), layers)
        if run.devices == self.inside:
            return memory
        if self.in_stages:
            return replace(memory, flat_bytes=weights_of(memory.layers))
        return replace(memory, gradients="stay")

    @property
    def _group_strategy(self) -> Strategy:
        """Strategy among the devices of one group."""
        return self.as_pipeline if self.in_stages else self.as_tensor

    def _run_of_group(self, run: TrainingRun) -> TrainingRun:
        """The run restricted to one group: its devices and its share of the batch."""
        return replace(run, devices=self.inside, batch=-(-run.batch * self.inside // run.devices))


@dataclass(frozen=True)
class _Bucket:
    """Gradients of one part of the model that are all-reduced across groups together."""

    at: float
    """Part of backward that is computed when the bucket is complete."""
    part: int
    bytes: int


class _SplitLayersPlan:
    """Builder of the plan of groups that split layers."""

    def __init__(
        self, footprint: Footprint, layer_splits: dict[str, LayerSplit], groups: DeviceGroups, batch: int
    ) -> None:
        self.builder = PlanBuilder()
        self.footprint, self.layer_splits, self.groups = footprint, layer_splits, groups
        shares = [split(batch, groups.count, number) for number in range(groups.planned)]
        # A group without samples computes one sample with weight zero.
        self.samples = [max(share.stop - share.start, 1) for share in shares]
        self.done: list[tuple[int, ...]] = [() for _ in shares]

    def plan(self) -> Plan:
        self._compute("load")
        self._add_pass("forward", forward_pass(self.footprint.matrices, self.layer_splits), [])
        self._compute("loss")
        backward = backward_pass(self.footprint.matrices, self.layer_splits)
        reduced = self._add_pass("backward", backward, self._buckets(backward.share))
        self.done = [ends + reduced for ends in self.done]
        own = sum(part_bytes(self.footprint, self.layer_splits, 0)) / sum(self.footprint.parameter_bytes)
        self._compute("update", own)
        return self.builder.plan()

    def _buckets(self, share: float) -> list[_Bucket]:
        """Buckets of all parts; if one group represents all groups, the first and largest part represents all parts."""
        if self.groups.count == 1:
            return []
        parts = range(self.groups.inside if self.groups.all_planned else 1)
        return [bucket for part in parts for bucket in self._buckets_of(part, share)]

    def _buckets_of(self, part: int, share: float) -> list[_Bucket]:
        """Buckets of one part of the model, packed as DDP does."""
        sizes = part_bytes(self.footprint, self.layer_splits, part)
        ready = list(accumulate(self.footprint.backward_shares([range(at, at + 1) for at in range(len(sizes))])))
        present = [at for at, size in enumerate(sizes) if size]
        return [
            _Bucket(share * max(ready[present[at]] for at in bucket), part, sum(sizes[present[at]] for at in bucket))
            for bucket in buckets_of([sizes[at] for at in present], None)
        ]

    def _add_pass(self, phase: str, passed: Pass, buckets: list[_Bucket]) -> tuple[int, ...]:
        """Add forward or backward, and return the last operation of every part's buckets.

        All-reduces within a group block its devices; buckets are all-reduced while the devices compute.
        """
        before = 0.0
        last: dict[int, tuple[int, ...]] = {}
        events: list[Sum | _Bucket] = [*passed.sums, *buckets]
        for event in sorted(events, key=lambda event: event.at):
            if isinstance(event, Sum) or event.at > before:  # buckets of all parts are ready at once
                self._compute_until(phase, before, event.at, passed.share, event if isinstance(event, Sum) else None)
            before = event.at
            if isinstance(event, Sum):
                self._sum_in_groups(event)
            else:
                ready = tuple(position for ends in self.done for position in ends) + last.get(event.part, ())
                last[event.part] = self.groups.sum_across(self.builder, event.part, event.bytes, ready)
        self._compute_until(phase, before, passed.share, passed.share)
        return tuple(position for ends in last.values() for position in ends)

    def _sum_in_groups(self, event: Sum) -> None:
        self.done = [
            self.groups.sum_inside(self.builder, first, event.bytes * samples, ends)
            for first, samples, ends in zip(self.groups.firsts, self.samples, self.done, strict=True)
        ]

    def _compute_until(self, phase: str, start: float, stop: float, whole: float, then: Sum | None = None) -> None:
        part = (stop - start) / whole
        self._compute(
            phase, stop - start, calls=split_layer_calls(len(self.layer_splits), part, then), called_share=part
        )

    def _compute(self, phase: str, share: float = 1.0, *, calls: int = 0, called_share: float = 0.0) -> None:
        self.done = [
            self.builder.compute(
                phase,
                first,
                samples,
                ends,
                share,
                self.groups.represented(first),
                calls=calls,
                called_share=called_share,
            )
            for first, samples, ends in zip(self.groups.firsts, self.samples, self.done, strict=True)
        ]


def _stages_plan(pipeline: Pipeline, footprint: Footprint, groups: DeviceGroups, batch: int) -> Plan:
    """Plan a pipeline in every group, followed by the all-reduces of all stages' gradients at the same time."""
    builder = PlanBuilder()
    stages, share = groups.inside, -(-batch // groups.count)
    filling = pipeline.filling(footprint, stages, share, groups.backend)
    schedule = schedule_of(pipeline.schedule, stages, 1, filling.number)
    pipelines = [
        StagesPlan(
            footprint,
            filling.ranges,
            range(first, first + stages),
            groups.backend,
            filling.size,
            when_due=True,
            sender_waits=True,
        )
        for first in groups.firsts
    ]
    ends: dict[int, tuple[int, ...]] = {}
    for stages_plan in pipelines:
        ends |= stages_plan.add_to(builder, schedule)
    for stage, sections in enumerate(filling.ranges):
        gradient_bytes = sum(footprint.sections[at].trained_bytes for at in sections)
        if gradient_bytes and groups.count > 1:
            ranks = [first + stage for first in groups.firsts]
            ready = tuple(position for rank in ranks for position in ends[rank])
            ends |= dict.fromkeys(ranks, groups.sum_across(builder, stage, gradient_bytes, ready))
    for stages_plan in pipelines:
        stages_plan.add_update(builder, ends, share)
    return builder.plan()
