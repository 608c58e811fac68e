"""Hybrid: groups of devices that share a model, and the batch shared out among the groups, as between PaLM's pods."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar

from scalewise.errors import UserError
from scalewise.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.alike_groups import AlikeGroups
from scalewise.strategies.buckets import buckets_of
from scalewise.strategies.cut_step import Pass, Sum, backward_pass, cut_calls, forward_pass, part_bytes
from scalewise.strategies.cuts import Cut
from scalewise.strategies.pipeline import Pipeline
from scalewise.strategies.schedules import schedule_of
from scalewise.strategies.shares import split
from scalewise.strategies.stage_cuts import check_cut
from scalewise.strategies.stages_plan import StagesPlan
from scalewise.strategies.strategy import AT_LEAST, IF_NONE, NAMED, Backend
from scalewise.strategies.tensor import Tensor


@dataclass(frozen=True)
class Hybrid:
    """Devices in a row are a group. Gradients are all-reduced between those of all groups that hold the same part."""

    name: ClassVar[str] = "hybrid"
    summary: ClassVar[str] = "a model shared by some devices (tensor or stages), data parallelism between such groups"
    exact: ClassVar[bool] = True

    tensor: int | None = field(default=None, metadata={AT_LEAST: 2, IF_NONE: "2 if stages is not given either"})
    """Devices that share a model as `tensor` does."""
    stages: int | None = field(default=None, metadata={AT_LEAST: 2, IF_NONE: "in place of tensor"})
    """Devices that share a model as `pipeline` does, each with a stage."""
    columns: str = ""
    """With tensor: layers of your own model to cut by columns, as in `tensor`; empty: as the model says itself."""
    rows: str = ""
    """With tensor: layers to cut by rows."""
    head_width: int = 1
    """With tensor: columns that stay together in named layers."""
    cut: str = field(default="", metadata={NAMED: "each begins a stage"})
    """With stages: modules that begin the second, third, ... stage, as in `pipeline`; empty: where it is balanced."""
    microbatches: int | None = field(default=None, metadata={IF_NONE: "with stages; as planned if not given"})
    """With stages: parts of a group's share of the batch."""

    def __post_init__(self) -> None:
        if self.tensor and self.stages:
            raise UserError(
                f"hybrid takes tensor={self.tensor} or stages={self.stages} inside, not both; leave one out"
            )
        for_stages = self.stages is not None
        foreign = ("columns", "rows", "head_width") if for_stages else ("cut", "microbatches")
        for name in foreign:
            if getattr(self, name) != getattr(type(self), name):
                asked, needed = ("stages", "tensor") if for_stages else ("tensor", "stages")
                raise UserError(
                    f"hybrid: {name}={getattr(self, name)} is for hybrid:{needed}=..., and this has {asked}="
                    f"{self.inside} inside; leave it out, or put {needed}={self.inside} in its place"
                )
        check_cut(self.cut)

    @property
    def as_tensor(self) -> Tensor:
        """What a group does that shares layers."""
        return Tensor(self.columns, self.rows, self.head_width)

    @property
    def as_pipeline(self) -> Pipeline:
        """What a group does that has stages."""
        return Pipeline(self.microbatches, cut=self.cut)

    @property
    def inside(self) -> int:
        """Devices of a group."""
        return self.stages or self.tensor or 2

    def check_devices(self, devices: int) -> None:
        if devices % self.inside:
            raise UserError(
                f"hybrid:{'stages' if self.stages else 'tensor'}={self.inside} has {self.inside} devices share a "
                f"model: --devices must be a multiple of {self.inside}, not {devices}"
            )

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        """With four devices in two groups:

        ranks 0, 1  forward |       | loss | backward |       | backward |                 | update
        links 0-1           | sum   |                 | sum   |                                       as in `tensor`
        links 0-2, 1-3                                | reduce bucket 0  | reduce bucket 1 |          as in `mirrored`
        """
        self.check_devices(devices)
        return self._planned(footprint, batch, AlikeGroups(devices, self.inside, devices // self.inside, backend))

    def plan_first(
        self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo", followed: int = 1
    ) -> Plan:
        """The step of the first groups, in the midst of all the others; as long as the whole, whatever their number.

        What meets on a host's links matters where stages send to each other: about so many devices are planned then.
        """
        self.check_devices(devices)
        few = max(2, followed // self.inside) if self.stages else 1
        planned = min(few, devices // self.inside)
        return self._planned(footprint, batch, AlikeGroups(devices, self.inside, planned, backend))

    def _planned(self, footprint: Footprint, batch: int, groups: AlikeGroups) -> Plan:
        if self.stages:
            return _stages_plan(self.as_pipeline, footprint, groups, batch)
        return _Step(footprint, self.as_tensor.cuts(footprint.matrices, self.inside), groups, batch).plan()


@dataclass(frozen=True)
class _Bucket:
    """Gradients of one part that are all-reduced between the groups together."""

    at: float
    """How much of backward the device has computed by then."""
    part: int
    bytes: int


class _Step:
    """The plan under way."""

    def __init__(self, footprint: Footprint, cuts: dict[str, Cut], groups: AlikeGroups, batch: int) -> None:
        self.builder = PlanBuilder()
        self.footprint, self.cuts, self.groups = footprint, cuts, groups
        shares = [split(batch, groups.count, number) for number in range(groups.planned)]
        # A group without samples computes one, with weight zero.
        self.samples = [max(share.stop - share.start, 1) for share in shares]
        self.done: list[tuple[int, ...]] = [() for _ in shares]

    def plan(self) -> Plan:
        self._compute("load")
        self._go_through("forward", forward_pass(self.footprint.matrices, self.cuts), [])
        self._compute("loss")
        backward = backward_pass(self.footprint.matrices, self.cuts)
        reduced = self._go_through("backward", backward, self._buckets(backward.share))
        self.done = [ends + reduced for ends in self.done]
        own = sum(part_bytes(self.footprint, self.cuts, 0)) / sum(self.footprint.parameter_bytes)
        self._compute("update", own)
        return self.builder.plan()

    def _buckets(self, share: float) -> list[_Bucket]:
        """Of all parts; where one group stands for the others, the first and largest part stands for the others."""
        if self.groups.count == 1:
            return []
        parts = range(self.groups.inside if self.groups.all_planned else 1)
        return [bucket for part in parts for bucket in self._buckets_of(part, share)]

    def _buckets_of(self, part: int, share: float) -> list[_Bucket]:
        """As DDP packs what this part has."""
        sizes = part_bytes(self.footprint, self.cuts, part)
        ready = list(accumulate(self.footprint.backward_shares([range(at, at + 1) for at in range(len(sizes))])))
        there = [at for at, size in enumerate(sizes) if size]
        return [
            _Bucket(share * max(ready[there[at]] for at in bucket), part, sum(sizes[there[at]] for at in bucket))
            for bucket in buckets_of([sizes[at] for at in there], None)
        ]

    def _go_through(self, phase: str, passed: Pass, buckets: list[_Bucket]) -> tuple[int, ...]:
        """Sums hold their group up; buckets travel beside. The last positions of those."""
        before = 0.0
        last: dict[int, tuple[int, ...]] = {}
        events: list[Sum | _Bucket] = [*passed.sums, *buckets]
        for event in sorted(events, key=lambda each: each.at):
            if isinstance(event, Sum) or event.at > before:  # buckets of all parts are ready at once
                self._compute_cut(phase, before, event.at, passed.share, event if isinstance(event, Sum) else None)
            before = event.at
            if isinstance(event, Sum):
                self._sum(event)
            else:
                ready = tuple(position for ends in self.done for position in ends) + last.get(event.part, ())
                last[event.part] = self.groups.sum_across(self.builder, event.part, event.bytes, ready)
        self._compute_cut(phase, before, passed.share, passed.share)
        return tuple(position for ends in last.values() for position in ends)

    def _sum(self, event: Sum) -> None:
        self.done = [
            self.groups.sum_inside(self.builder, first, event.bytes * samples, ends)
            for first, samples, ends in zip(self.groups.firsts, self.samples, self.done, strict=True)
        ]

    def _compute_cut(self, phase: str, start: float, stop: float, whole: float, then: Sum | None = None) -> None:
        part = (stop - start) / whole
        self._compute(phase, stop - start, calls=cut_calls(len(self.cuts), part, then), called_share=part)

    def _compute(self, phase: str, share: float = 1.0, *, calls: int = 0, called_share: float = 0.0) -> None:
        self.done = [
            self.builder.compute(
                phase, first, samples, ends, share, self.groups.alike(first), calls=calls, called_share=called_share
            )
            for first, samples, ends in zip(self.groups.firsts, self.samples, self.done, strict=True)
        ]


def _stages_plan(pipeline: Pipeline, footprint: Footprint, groups: AlikeGroups, batch: int) -> Plan:
    """A pipeline in every group; when it is through, gradients are all-reduced stage by stage, all at once."""
    builder = PlanBuilder()
    stages, share = groups.inside, -(-batch // groups.count)
    filled = pipeline.filling(footprint, stages, share, groups.backend)
    schedule = schedule_of(pipeline.schedule, stages, 1, filled.number)
    lines = [
        StagesPlan(
            footprint,
            filled.ranges,
            range(first, first + stages),
            groups.backend,
            filled.size,
            when_due=True,
            sender_waits=True,
        )
        for first in groups.firsts
    ]
    ends: dict[int, tuple[int, ...]] = {}
    for line in lines:
        ends |= line.add_to(builder, schedule)
    for stage, sections in enumerate(filled.ranges):
        held = sum(footprint.sections[at].trained_bytes for at in sections)
        if held and groups.count > 1:
            ranks = [first + stage for first in groups.firsts]
            ready = tuple(position for rank in ranks for position in ends[rank])
            ends |= dict.fromkeys(ranks, groups.sum_across(builder, stage, held, ready))
    for line in lines:
        line.add_update(builder, ends, share)
    return builder.plan()
