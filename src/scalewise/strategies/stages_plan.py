"""The plan shared by strategies that put stages of a model on different devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from scalewise.collectives import point_to_point
from scalewise.collectives.send import Send
from scalewise.plan import Ends, Footprint, PlanBuilder
from scalewise.strategies.schedules import Work
from scalewise.strategies.stage_cuts import costs_of
from scalewise.strategies.strategy import Backend

NOTICE_BYTES = 1
PASS_CALLS = 50
"""To a device, to start a stage's forward or backward with what has arrived."""


@dataclass(frozen=True)
class _Passed:
    """What one stage has for the next, until that is there to receive it."""

    source: int
    ready: tuple[int, ...]
    sizes: Sequence[int]


@dataclass(frozen=True)
class StagesPlan:
    """One step of stages in a row: stage s is on the device `ranks[s % len(ranks)]`."""

    footprint: Footprint
    ranges: Sequence[range]
    """The sections of every stage."""
    ranks: Sequence[int]
    backend: Backend
    samples: int
    """Of each micro-batch."""
    notices: bool = False
    """A byte goes ahead of every message, so that waiting for it and receiving it can be told apart."""
    recompute: bool = False
    """Stages keep only what they are given, and go forward once more before backward."""
    when_due: bool = False
    """Nothing is sent before the stage that needs it has come to it: then only does torch receive in gpipe and 1f1b."""
    sender_waits: bool = False
    """Until what it sent is received, before it goes on, as in 1f1b."""

    def add_to(self, builder: PlanBuilder, schedule: Sequence[Sequence[Work]]) -> Ends:
        """Everything up to the update: for each rank, what that waits for.

        rank 0  load | forward 0 | forward 1 |           |            | backward 0 | backward 1
        link               | receive 0 | receive 1       | receive 0  | receive 1
        rank 1                         | forward 0, loss | backward 0 | forward 1, loss | backward 1
        """
        done: dict[int, tuple[int, ...]] = {}
        whole = self.samples * max(work.microbatch + 1 for works in schedule for work in works)
        for rank in {self.ranks[0]: 0, self._home(len(self.ranges) - 1): 0}:
            done[rank] = builder.compute("load", rank, whole)
        coming: dict[Work, _Passed] = {}
        waiting = [list(works) for works in schedule]
        while any(waiting):
            for works in waiting:
                while works and self._can_start(works[0], coming):
                    work = works.pop(0)
                    rank = self._home(work.stage)
                    before = done.get(rank, ())
                    if work in coming:
                        before += self._receive(builder, coming[work], rank, done)
                    done[rank] = self._compute(builder, work, rank, before)
                    self._pass_on(work, done[rank], coming)
        return done

    def add_update(self, builder: PlanBuilder, after: Ends, batch: int) -> None:
        total = sum(section.trained_bytes for section in self.footprint.sections)
        for rank in self.ranks:
            own = sum(
                self.footprint.sections[at].trained_bytes
                for stage, sections in enumerate(self.ranges)
                if self._home(stage) == rank
                for at in sections
            )
            if own or not total:
                builder.compute("update", rank, batch, after.get(rank, ()), own / total if total else 1.0)

    @cached_property
    def _shares(self) -> list[float]:
        """Of every stage in what a device alone would compute."""
        costs = costs_of(self.footprint.sections)
        return [sum(costs[at] for at in stage) / sum(costs) if any(costs) else 1.0 for stage in self.ranges]

    def _home(self, stage: int) -> int:
        return self.ranks[stage % len(self.ranks)]

    def _can_start(self, work: Work, coming: dict[Work, _Passed]) -> bool:
        return work in coming or (work.phase == "forward" and work.stage == 0)

    def _compute(self, builder: PlanBuilder, work: Work, rank: int, before: tuple[int, ...]) -> tuple[int, ...]:
        share = self._shares[work.stage]
        if work.phase == "backward" and self.recompute:
            before = builder.compute("forward", rank, self.samples, before, share)
        done = builder.compute(work.phase, rank, self.samples, before, share, calls=PASS_CALLS)
        if work.phase == "forward" and work.stage == len(self.ranges) - 1:
            done = builder.compute("loss", rank, self.samples, done)
        return done

    def _pass_on(self, work: Work, done: tuple[int, ...], coming: dict[Work, _Passed]) -> None:
        """To the next stage, or the one before; or nowhere, once the model has been gone through."""
        last, source = len(self.ranges) - 1, self._home(work.stage)
        if work.phase == "forward" and work.stage == last:
            coming[Work("backward", last, work.microbatch)] = _Passed(source, done, ())
            return
        stage = work.stage + (1 if work.phase == "forward" else -1)
        if stage < 0:
            return
        border = self.footprint.sections[self.ranges[min(work.stage, stage)].stop - 1]
        sizes = border.passed_bytes if work.phase == "forward" else border.returned_bytes
        coming[Work(work.phase, stage, work.microbatch)] = _Passed(source, done, sizes)

    def _receive(self, builder: PlanBuilder, passed: _Passed, target: int, done: Ends) -> tuple[int, ...]:
        """What the target's work waits for; what the source does next may wait for it too."""
        source = passed.source
        if source == target:
            return passed.ready
        messages = self._messages(source, target, passed.sizes)
        ready = passed.ready + (done.get(target, ()) if self.when_due else ())
        ends = builder.transfer("receive", messages, {source: ready})
        if self.sender_waits:
            done[source] = done.get(source, ()) + ends.get(source, ())
        return ends.get(target, passed.ready)

    def _messages(self, source: int, target: int, sizes: Sequence[int]) -> list[Send]:
        bytes = [size * self.samples for size in sizes]
        if self.notices and bytes:
            bytes.insert(0, NOTICE_BYTES)
        return [send for size in bytes for send in point_to_point(self.backend, source, target, size)]
