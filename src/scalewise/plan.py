"""One step of a strategy as data: its operations, what each waits for, and the bytes it sends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal

from scalewise.collectives.collective import Collective
from scalewise.collectives.send import Send, busiest_bytes, total_bytes


@dataclass(frozen=True)
class Matrix:
    """A linear or convolutional layer, which can be cut: columns are what it puts out, rows what it takes in."""

    name: str
    role: Literal["columns", "rows", ""]
    """How the model says it is to be cut, if at all: what columns put out stays in parts until rows take it in."""
    group: str
    """Those that do so together."""
    columns: int
    rows: int
    unit: int = 1
    """Of the cut ones so many stay together: a head's width."""
    source: int = 0
    """Layers with the same number take in the same tensor."""
    input_bytes: int = 0
    """Of one sample, as is the next."""
    output_bytes: int = 0
    input_learns: bool = True
    """Whether backward needs the gradient of what it takes in; that of the data is not needed."""
    flops: int = 0
    """Forward, of one sample."""


@dataclass(frozen=True)
class Section:
    """A part of a model that is never cut, in the order of forward: what it costs, and what it hands to the next one.

    Bytes and flops are of one sample.
    """

    name: str
    flops: int
    """Forward."""
    parameter_bytes: int
    kept_bytes: int
    """For backward."""
    passed_bytes: tuple[int, ...]
    """Of every tensor that the next section is given, those that only pass through (skip connections) too."""
    returned_bytes: tuple[int, ...]
    """Of every gradient that comes back from it."""
    seconds: float = 0.0
    """Of some samples forward and backward, where it was measured."""
    frozen_bytes: int = 0
    """Of the parameters, those that are not trained."""
    operations: int = 0
    """Kernels of forward; 0: not known."""

    @property
    def trained_bytes(self) -> int:
        return self.parameter_bytes - self.frozen_bytes


@dataclass(frozen=True)
class Still:
    """A parameter in a layer that is called which no step changes: it is frozen, or never reached."""

    name: str
    bytes: int
    shape: tuple[int, ...]
    after: int
    """So many of the trainable ones come before it, in the order of forward."""


@dataclass(frozen=True)
class Footprint:
    """What a workload weighs: all that a plan needs to know of it, without torch."""

    parameter_bytes: tuple[int, ...]
    """One entry per trainable tensor, in the order in which gradients become ready: about the model's, reversed."""
    input_bytes: int
    """Of one sample, as are the next two."""
    target_bytes: int
    output_bytes: int
    parameter_shapes: tuple[tuple[int, ...], ...] = ()
    """In the same order; compression looks at them."""
    ready: tuple[float, ...] = ()
    """When, as a fraction of backward, each gradient is complete, in the same order; empty: in step with the bytes."""
    read_again: tuple[bool, ...] = ()
    """In the same order, whether backward reads the weights too; empty: all are. A bias or an embedding is not."""
    parameter_names: tuple[str, ...] = ()
    """In the same order; empty: not known."""
    matrices: tuple[Matrix, ...] = ()
    """In the order of their calls."""
    sections: tuple[Section, ...] = ()
    """Between which the model can be cut into stages; empty: nowhere, or not known."""
    still: tuple[Still, ...] = ()
    """In the order of forward."""
    room_bytes: int | None = None
    """Of a device, where that is limited: stages are cut so that they fit."""
    state_copies: int = 2
    """Of the weights, as the optimizer's state; two for Adam."""
    on_gpu: bool = False
    """Devices that compute much faster than they are told what to do."""
    microbatches: int | None = None
    """That an engine chose for a pipeline, or `layers` computes one after the other; None: a plan chooses."""
    norms_batches: bool = False
    """Whether a layer computes with the mean of the samples that it sees, as batch norm does."""

    def backward_shares(self, groups: Sequence[range]) -> list[float]:
        """The part of backward that passes until each group of gradients is complete, after the one before it."""
        total = sum(self.parameter_bytes)
        if not self.ready:
            return [sum(self.parameter_bytes[position] for position in group) / total for group in groups]
        ends = [max(self.ready[position] for position in group) for group in groups]
        ends[-1] = 1.0
        return [max(0.0, end - before) for before, end in pairwise([0.0, *accumulate(ends, max)])]


@dataclass(frozen=True)
class Operation:
    """Seconds of one rank, or one transfer between two; `after` are positions in the plan that must have ended."""

    phase: str
    rank: int
    after: tuple[int, ...] = ()
    samples: int = 0
    """What a compute operation works on; the seconds come from a profile."""
    share: float = 1.0
    """The part of the phase's seconds that this operation takes (a bucket's part of backward, say)."""
    send: Send | None = None
    collective: Collective | None = None
    """Of all its ranks at once; `rank` is the first."""
    count: int = 1
    """So many ranks are alike and do the same: those from `rank` on; of a send, from the lower of its ends on."""
    moved_bytes: int = 0
    """Read and written in the device's own memory on top of the phase: gradients copied into buckets, or added up."""
    in_host_memory: bool = False
    """Where those bytes are instead."""
    calls: int = 0
    """To the device, on top of the phase's own: each takes as long as starting something small there."""
    called_share: float = 0.0
    """The part of the phase's own calls that it makes: cutting layers makes what they start smaller, not fewer."""


@dataclass(frozen=True)
class Plan:
    """The operations of one step over all ranks."""

    operations: tuple[Operation, ...]

    @property
    def sends(self) -> list[Send]:
        made: list[Send] = []
        for operation in self.operations:
            if operation.send:
                made += alike_sends(operation.send, operation.count)
            elif operation.collective:
                made += sends_among(operation.collective, operation.rank)
        return made

    @property
    def bytes_per_step(self) -> int:
        """Sent in total, over all ranks."""
        return total_bytes(self.sends)

    @property
    def busiest_bytes(self) -> int:
        """The most that one rank sends plus receives."""
        return busiest_bytes(self.sends)


def alike_sends(send: Send, count: int) -> list[Send]:
    """The send, and the same with the next ranks in place of its lower end."""
    if send.source < send.target:
        return [replace(send, source=send.source + number) for number in range(count)]
    return [replace(send, target=send.target + number) for number in range(count)]


def sends_among(collective: Collective, first: int) -> Sequence[Send]:
    """Those of a collective between its own ranks, the first of which is this one."""
    if not first and collective.stride == 1:
        return collective.sends
    stride = collective.stride
    return [
        replace(send, source=first + stride * send.source, target=first + stride * send.target)
        for send in collective.sends
    ]


Ends = dict[int, tuple[int, ...]]
"""For each rank, the operations that must have ended before it goes on."""


class PlanBuilder:
    """Operations added in order; each returns what later ones wait for."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def compute(
        self,
        phase: str,
        rank: int,
        samples: int,
        after: Iterable[int] = (),
        share: float = 1.0,
        count: int = 1,
        moved_bytes: int = 0,
        *,
        in_host_memory: bool = False,
        calls: int = 0,
        called_share: float = 0.0,
    ) -> tuple[int]:
        self.operations.append(
            Operation(
                phase,
                rank,
                tuple(after),
                samples,
                share,
                count=count,
                moved_bytes=moved_bytes,
                in_host_memory=in_host_memory,
                calls=calls,
                called_share=called_share,
            )
        )
        return (len(self.operations) - 1,)

    def meet(self, ranks: int, backend: str, after: Iterable[int]) -> tuple[int, ...]:
        """All wait for each other, and nothing is sent that counts."""
        if ranks == 1:
            return tuple(after)
        nothing = Collective("all_reduce", backend, ranks, 0)
        self.operations.append(Operation("idle", 0, tuple(after), collective=nothing, count=ranks))
        return (len(self.operations) - 1,)

    def collective(self, phase: str, collective: Collective, after: Iterable[int], first: int = 0) -> tuple[int, ...]:
        """Starts when all have come to it, from rank `first` on; nothing if there is nobody to exchange with."""
        if collective.ranks == 1 or collective.bytes == 0:
            return tuple(after)
        self.operations.append(Operation(phase, first, tuple(after), collective=collective, count=collective.ranks))
        return (len(self.operations) - 1,)

    def transfer(self, phase: str, sends: Iterable[Send], after: Mapping[int, tuple[int, ...]], count: int = 1) -> Ends:
        """Sends, each starting when its source has what it sends; a rank goes on when all of its own are over.

        Each stands for `count` alike, whose lower ends are ranks in a row.
        """
        first = len(self.operations)
        ends: dict[int, list[int]] = defaultdict(list)
        for send in sends:
            before = (*after.get(send.source, ()), *(first + position for position in send.after))
            self.operations.append(Operation(phase, send.source, before, send=send, count=count))
            for rank in (send.source, send.target):
                ends[rank].append(len(self.operations) - 1)
        return {rank: tuple(positions) for rank, positions in ends.items()}

    def plan(self) -> Plan:
        return Plan(tuple(self.operations))
