"""Plan of a step of stages on different devices."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from scalewise.hardware.collectives import Backend, point_to_point
from scalewise.hardware.transfers import Send
from scalewise.strategies.partitioning import costs_of
from scalewise.strategies.plan import Ends, Footprint, Plan, PlanBuilder

Kind = Literal["gpipe", "1f1b", "interleaved"]


@dataclass(frozen=True, order=True)
class Work:
    """Forward or backward of one micro-batch through one stage."""

    phase: Literal["forward", "backward"]
    stage: int
    microbatch: int


def schedule_of(kind: Kind, devices: int, stages_each: int, microbatches: int) -> list[list[Work]]:
    """Work of each device, in order. Stage s is on device s % devices."""
    if kind == "gpipe":
        return [_gpipe(device, microbatches) for device in range(devices)]
    if kind == "1f1b":
        return [_one_forward_one_backward(device, devices, microbatches) for device in range(devices)]
    return [_interleaved(device, devices, stages_each, microbatches) for device in range(devices)]


def most_under_way(schedule: Sequence[Sequence[Work]], stages: int) -> list[int]:
    """For every stage, the largest number of micro-batches between their forward and their backward."""
    now, most = [0] * stages, [0] * stages
    for works in schedule:
        for work in works:
            now[work.stage] += 1 if work.phase == "forward" else -1
            most[work.stage] = max(most[work.stage], now[work.stage])
    return most


def _gpipe(stage: int, microbatches: int) -> list[Work]:
    """Work of one stage with the gpipe schedule: F0 F1 F2 F3 B0 B1 B2 B3."""
    numbers = range(microbatches)
    return [Work("forward", stage, number) for number in numbers] + [
        Work("backward", stage, number) for number in numbers
    ]


def _one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[Work]:
    """Work of one stage with the 1f1b schedule. First of two stages: F0 F1 B0 F2 B1 F3 B2 B3.

    A stage keeps activations of at most `stages - stage` micro-batches.
    """
    ahead = min(microbatches, stages - stage)
    work = [Work("forward", stage, number) for number in range(ahead)]
    for number in range(microbatches):
        work.append(Work("backward", stage, number))
        if ahead + number < microbatches:
            work.append(Work("forward", stage, ahead + number))
    return work


def _interleaved(device: int, devices: int, stages_each: int, microbatches: int) -> list[Work]:
    """Work of one device with the interleaved schedule.

    Rounds of micro-batches go forward through the device's first stage, then its second, and so on, and backward
    through its last stage first.
    """
    in_round = microbatches // max(1, microbatches // devices)
    total = stages_each * microbatches
    ahead = min((stages_each - 1) * in_round + 2 * (devices - 1 - device), total)
    done: Counter[tuple[str, int]] = Counter()

    def next_of(phase: Literal["forward", "backward"], local: int) -> Work:
        stage = local * devices + device
        done[phase, stage] += 1
        return Work(phase, stage, done[phase, stage] - 1)

    forward: Callable[[int], Work] = lambda turn: next_of("forward", turn // in_round % stages_each)  # noqa: E731
    backward: Callable[[int], Work] = lambda turn: next_of(  # noqa: E731
        "backward", stages_each - 1 - turn // in_round % stages_each
    )
    work = [forward(turn) for turn in range(ahead)]
    for turn in range(total - ahead):
        work += [forward(ahead + turn), backward(turn)]
    return work + [backward(turn) for turn in range(total - ahead, total)]


NOTICE_BYTES = 1
PASS_CALLS = 50
"""Device calls to start a stage's forward or backward with the received tensors."""


@dataclass(frozen=True)
class _Message:
    """Tensors that one stage sends to another."""

    source: int
    """Rank that sends."""
    ready: tuple[int, ...]
    """Operations after which the tensors can be sent."""
    sizes: Sequence[int]
    """Bytes per sample of each tensor."""


@dataclass(frozen=True)
class StagesPlan:
    """Plan of one step of consecutive stages: stage s is on device `ranks[s % len(ranks)]`."""

    footprint: Footprint
    ranges: Sequence[range]
    """Sections of every stage."""
    ranks: Sequence[int]
    backend: Backend
    samples: int
    """Samples per micro-batch."""
    notices: bool = False
    """A byte is sent before every message, so that waiting for a message and receiving it are separate phases."""
    recompute: bool = False
    """Stages keep only their inputs, and run forward again before backward."""
    when_due: bool = False
    """A message is sent only when the receiver needs it, because torch posts receives that late in gpipe and 1f1b."""
    sender_waits: bool = False
    """A sender continues only after its message has been received, as in 1f1b."""

    def add_to(self, builder: PlanBuilder, schedule: Sequence[Sequence[Work]]) -> Ends:
        """Add all operations before the update; return, for each rank, the operations that its update waits for.

        rank 0  load | forward 0 | forward 1 |           |            | backward 0 | backward 1
        link               | receive 0 | receive 1       | receive 0  | receive 1
        rank 1                         | forward 0, loss | backward 0 | forward 1, loss | backward 1
        """
        done: dict[int, tuple[int, ...]] = {}
        whole = self.samples * max(work.microbatch + 1 for works in schedule for work in works)
        for rank in {self.ranks[0]: 0, self._home(len(self.ranges) - 1): 0}:
            done[rank] = builder.compute("load", rank, whole)
        messages: dict[Work, _Message] = {}
        remaining = [list(works) for works in schedule]
        while any(remaining):
            for works in remaining:
                while works and self._can_start(works[0], messages):
                    work = works.pop(0)
                    rank = self._home(work.stage)
                    before = done.get(rank, ())
                    if work in messages:
                        before += self._receive(builder, messages[work], rank, done)
                    done[rank] = self._compute(builder, work, rank, before)
                    self._queue_message(work, done[rank], messages)
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
        """Compute time of every stage, relative to the whole model."""
        costs = costs_of(self.footprint.sections)
        return [sum(costs[at] for at in stage) / sum(costs) if any(costs) else 1.0 for stage in self.ranges]

    def _home(self, stage: int) -> int:
        return self.ranks[stage % len(self.ranks)]

    def _can_start(self, work: Work, messages: dict[Work, _Message]) -> bool:
        return work in messages or (work.phase == "forward" and work.stage == 0)

    def _compute(self, builder: PlanBuilder, work: Work, rank: int, before: tuple[int, ...]) -> tuple[int, ...]:
        share = self._shares[work.stage]
        if work.phase == "backward" and self.recompute:
            before = builder.compute("forward", rank, self.samples, before, share)
        done = builder.compute(work.phase, rank, self.samples, before, share, calls=PASS_CALLS)
        if work.phase == "forward" and work.stage == len(self.ranges) - 1:
            done = builder.compute("loss", rank, self.samples, done)
        return done

    def _queue_message(self, work: Work, done: tuple[int, ...], messages: dict[Work, _Message]) -> None:
        """Queue the message that `work` sends to the next stage in forward, or to the previous one in backward."""
        last, source = len(self.ranges) - 1, self._home(work.stage)
        if work.phase == "forward" and work.stage == last:
            messages[Work("backward", last, work.microbatch)] = _Message(source, done, ())
            return
        stage = work.stage + (1 if work.phase == "forward" else -1)
        if stage < 0:
            return
        border = self.footprint.sections[self.ranges[min(work.stage, stage)].stop - 1]
        sizes = border.passed_bytes if work.phase == "forward" else border.returned_bytes
        messages[Work(work.phase, stage, work.microbatch)] = _Message(source, done, sizes)

    def _receive(self, builder: PlanBuilder, message: _Message, target: int, done: Ends) -> tuple[int, ...]:
        """Add the sends of a message; return what the target's work waits for.

        With `sender_waits`, the source's next operation waits for the sends too.
        """
        source = message.source
        if source == target:
            return message.ready
        sends = self._sends(source, target, message.sizes)
        ready = message.ready + (done.get(target, ()) if self.when_due else ())
        ends = builder.transfer("receive", sends, {source: ready})
        if self.sender_waits:
            done[source] = done.get(source, ()) + ends.get(source, ())
        return ends.get(target, message.ready)

    def _sends(self, source: int, target: int, sizes: Sequence[int]) -> list[Send]:
        bytes = [size * self.samples for size in sizes]
        if self.notices and bytes:
            bytes.insert(0, NOTICE_BYTES)
        return [send for size in bytes for send in point_to_point(self.backend, source, target, size)]


RELATIVE_SECONDS = {"forward": 1.0, "backward": 2.0}
"""Assumed seconds per sample, relative to forward; other phases take no time."""


def idle_shares(plan: Plan, devices: int) -> list[float]:
    """Fraction of a step during which each device is idle."""
    ends: list[float] = []
    busy: dict[int, float] = defaultdict(float)
    for operation in plan.operations:
        ready = max((ends[before] for before in operation.after), default=0.0)
        seconds = RELATIVE_SECONDS.get(operation.phase, 0.0) * operation.samples * operation.share
        busy[operation.rank] += seconds
        ends.append(ready + seconds)
    return [1 - busy[rank] / max(ends) for rank in range(devices)]
