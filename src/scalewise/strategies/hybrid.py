"""Hybrid: groups of devices that share a model, and the batch shared out among the groups, as between PaLM's pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import ClassVar

from scalewise.collectives.collective import Collective
from scalewise.collectives.send import Send
from scalewise.errors import UserError
from scalewise.plan import Ends, Footprint, Plan, PlanBuilder
from scalewise.strategies.buckets import buckets_of
from scalewise.strategies.cut_step import Pass, Sum, backward_pass, forward_pass, part_bytes
from scalewise.strategies.cuts import Cut
from scalewise.strategies.microbatches import microbatch_size, microbatches_for
from scalewise.strategies.pipeline import Pipeline
from scalewise.strategies.schedules import schedule_of
from scalewise.strategies.shares import share_sizes
from scalewise.strategies.stage_cuts import stage_ranges
from scalewise.strategies.stages_plan import StagesPlan
from scalewise.strategies.strategy import AT_LEAST, IF_NONE, Backend
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

    def __post_init__(self) -> None:
        if self.tensor and self.stages:
            raise UserError(
                f"hybrid takes tensor={self.tensor} or stages={self.stages} inside, not both; leave one out"
            )

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
        if self.stages:
            return _stages_plan(footprint, devices, self.stages, batch, backend)
        cuts = Tensor().cuts(footprint.matrices, self.inside)
        return _Step(footprint, cuts, devices, self.inside, batch, backend).plan()


@dataclass(frozen=True)
class _Bucket:
    """Gradients of one part that are all-reduced between the groups together."""

    at: float
    """How much of backward the device has computed by then."""
    part: int
    bytes: int


class _Step:
    """The plan under way."""

    def __init__(
        self, footprint: Footprint, cuts: dict[str, Cut], devices: int, parts: int, batch: int, backend: Backend
    ) -> None:
        self.builder = PlanBuilder()
        self.footprint, self.cuts = footprint, cuts
        self.parts, self.backend = parts, backend
        self.firsts = range(0, devices, parts)
        # A group without samples computes one, with weight zero.
        self.samples = [max(size, 1) for size in share_sizes(batch, len(self.firsts))]
        self.done: list[tuple[int, ...]] = [() for _ in self.firsts]

    def plan(self) -> Plan:
        self._compute("load")
        self._go_through("forward", forward_pass(self.footprint.matrices, self.cuts), [])
        self._compute("loss")
        backward = backward_pass(self.footprint.matrices, self.cuts)
        buckets = [bucket for part in range(self.parts) for bucket in self._buckets(part, backward.share)]
        reduced = self._go_through("backward", backward, buckets if len(self.firsts) > 1 else [])
        self.done = [ends + reduced for ends in self.done]
        own = sum(part_bytes(self.footprint, self.cuts, 0)) / sum(self.footprint.parameter_bytes)
        self._compute("update", own)
        return self.builder.plan()

    def _buckets(self, part: int, share: float) -> list[_Bucket]:
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
            self._compute(phase, event.at - before)
            before = event.at
            if isinstance(event, Sum):
                self._sum(event)
            else:
                ranks = [first + event.part for first in self.firsts]
                ready = {rank: ends + last.get(event.part, ()) for rank, ends in zip(ranks, self.done, strict=True)}
                last[event.part] = self._exchange(event.bytes, ranks, ready)
        self._compute(phase, passed.share - before)
        return tuple(position for ends in last.values() for position in ends)

    def _sum(self, event: Sum) -> None:
        for number, first in enumerate(self.firsts):
            ranks = range(first, first + self.parts)
            ready = dict.fromkeys(ranks, self.done[number])
            self.done[number] = self._exchange(event.bytes * self.samples[number], ranks, ready)

    def _compute(self, phase: str, share: float = 1.0) -> None:
        self.done = [
            self.builder.compute(phase, first, samples, ends, share, self.parts)
            for first, samples, ends in zip(self.firsts, self.samples, self.done, strict=True)
        ]

    def _exchange(self, bytes: int, ranks: Sequence[int], ready: Ends) -> tuple[int, ...]:
        sends = sends_among(Collective("all_reduce", self.backend, len(ranks), bytes), ranks)
        ends = self.builder.transfer("reduce", sends, ready)
        return tuple(sorted({position for positions in ends.values() for position in positions}))


def sends_among(collective: Collective, ranks: Sequence[int]) -> list[Send]:
    """Those of a collective between some of the ranks."""
    return [replace(send, source=ranks[send.source], target=ranks[send.target]) for send in collective.sends]


def _stages_plan(footprint: Footprint, devices: int, stages: int, batch: int, backend: Backend) -> Plan:
    """A pipeline in every group; when it is through, gradients are all-reduced stage by stage, all at once."""
    builder = PlanBuilder()
    pipeline = Pipeline()
    firsts = range(0, devices, stages)
    share = -(-batch // len(firsts))
    count = microbatches_for(share, stages, pipeline.schedule, pipeline.microbatches)
    ranges = stage_ranges(footprint.sections, stages, share)
    size = microbatch_size(share, count)
    lines = [StagesPlan(footprint, ranges, range(first, first + stages), backend, size) for first in firsts]
    ends: dict[int, tuple[int, ...]] = {}
    for line in lines:
        ends |= line.add_to(builder, schedule_of(pipeline.schedule, stages, 1, count))
    for stage, sections in enumerate(ranges):
        ranks = [first + stage for first in firsts]
        held = sum(footprint.sections[at].parameter_bytes for at in sections)
        sends = sends_among(Collective("all_reduce", backend, len(ranks), held), ranks)
        ends |= builder.transfer("reduce", sends, {rank: ends[rank] for rank in ranks})
    for line in lines:
        line.add_update(builder, ends, share)
    return builder.plan()
