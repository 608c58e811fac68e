"""Collectives as the point-to-point sends that gloo or NCCL makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from scalewise.core.specs import unknown
from scalewise.hardware import gloo, nccl
from scalewise.hardware.transfers import Send, busiest_bytes, received_bytes, sent_bytes, total_bytes

MIB = 2**20

PIECE_MB = 2.0
"""Default piece size. Between CPU ranks, pieces of 1 MB or 4 MB are about 5 % slower, pieces of 0.5 MB 25 %."""

_ELEMENT_BYTES = 4
"""Tensors are split between elements. float32 is assumed; with other types the split differs by a few bytes."""


@dataclass(frozen=True)
class Schedule:
    """Schedule of one rank in one all-reduce. Pieces are numbered; empty ones are not sent."""

    sizes: tuple[int, ...]
    """Number of elements of every piece of the tensor."""
    sent: tuple[tuple[int, ...], ...]
    """Pieces that are sent in each step."""
    received: tuple[tuple[int, ...], ...]
    """Pieces that are received in each step; they are sent in the next step."""

    @property
    def window(self) -> int:
        """Largest number of pieces in flight to a rank, so that each has arrived before it must be sent on."""
        return max(1, min(map(len, self.sent + self.received)))


@lru_cache(maxsize=1024)
def schedule_of(ranks: int, rank: int, elements: int, element_bytes: int, piece_bytes: int) -> Schedule:
    sizes = piece_sizes(ranks, elements, element_bytes, piece_bytes)
    return Schedule(sizes, _sent(ranks, rank, sizes), _sent(ranks, rank - 1, sizes))


def piece_sizes(ranks: int, elements: int, element_bytes: int, piece_bytes: int) -> tuple[int, ...]:
    """Return the number of elements of every piece.

    All chunks have the same number of pieces. Pieces are nearly equal, and at most `piece_bytes` large or one element.
    """
    piece_elements = max(1, piece_bytes // element_bytes)
    count = ranks * max(1, -(-elements // (ranks * piece_elements)))
    boundaries = [elements * number // count for number in range(count + 1)]
    return tuple(end - start for start, end in pairwise(boundaries))


def _sent(ranks: int, rank: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    per_chunk = len(sizes) // ranks
    firsts = [(rank - step) % ranks * per_chunk for step in range(2 * (ranks - 1))]
    return tuple(tuple(piece for piece in range(first, first + per_chunk) if sizes[piece]) for first in firsts)


def ring_sends(ranks: int, bytes: int, piece_MB: float) -> tuple[Send, ...]:
    """Return the sends of one all-reduce: one per piece and step, after the send that brought the piece to the rank."""
    elements, piece_bytes = -(-bytes // _ELEMENT_BYTES), int(piece_MB * MIB)
    schedules = [schedule_of(ranks, rank, elements, _ELEMENT_BYTES, piece_bytes) for rank in range(ranks)]
    sends: list[Send] = []
    received: dict[tuple[int, int], tuple[int, ...]] = {}
    for step in range(2 * (ranks - 1)):
        for rank, schedule in enumerate(schedules):
            target = (rank + 1) % ranks
            for piece in schedule.sent[step]:
                size_bytes = schedule.sizes[piece] * _ELEMENT_BYTES
                sends.append(Send(rank, target, size_bytes, after=received.get((rank, piece), ())))
                received[target, piece] = (len(sends) - 1,)
    return tuple(sends)


__all__ = [
    "BACKENDS",
    "Send",
    "busiest_bytes",
    "point_to_point",
    "received_bytes",
    "sends",
    "sent_bytes",
    "total_bytes",
]

BACKENDS: Mapping[str, Mapping[str, Callable[[int, int, int], tuple[Send, ...]]]] = {
    "gloo": {
        "broadcast": gloo.broadcast,
        "reduce": gloo.reduce,
        "all_reduce": gloo.all_reduce,
        "all_gather": gloo.all_gather,
        "reduce_scatter": gloo.reduce_scatter,
        "gather": gloo.gather,
        "scatter": gloo.scatter,
        "send": gloo.send,
    },
    "nccl": {
        "broadcast": nccl.broadcast,
        "reduce": nccl.reduce,
        "all_reduce": nccl.all_reduce,
        "all_gather": nccl.all_gather,
        "reduce_scatter": nccl.reduce_scatter,
        "gather": nccl.gather,
        "scatter": nccl.scatter,
        "send": nccl.send,
    },
}


def sends(backend: str, operation: str, ranks: int, bytes: int, root: int = 0, hosts: int = 1) -> tuple[Send, ...]:
    """Return the sends of one collective, in an order in which they could happen.

    `bytes` is the size of the whole tensor in every operation: on every rank after an all-gather or before a
    reduce-scatter, on the root before a scatter or after a gather. A shard is 1/N of it. The operation 'send' goes from
    `root` to the next rank. Consecutive ranks are on the same host, the same number on each of the `hosts`; only NCCL
    depends on it.
    """
    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    if operation not in BACKENDS[backend]:
        raise unknown("operation", operation, BACKENDS[backend])
    if ranks == 1 or bytes == 0:
        return ()
    if backend == "nccl" and operation == "all_reduce" and nccl.prefers_tree(ranks, bytes, hosts):
        return nccl.tree_all_reduce(ranks, bytes, hosts)
    return BACKENDS[backend][operation](ranks, bytes, root)


@lru_cache(maxsize=4096)
def point_to_point(backend: str, source: int, target: int, bytes: int) -> tuple[Send, ...]:
    """Return the sends of one message between two ranks; none if it is empty."""
    return tuple(replace(send, source=source, target=target) for send in sends(backend, "send", 2, bytes))


Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True)
class Collective:
    """One collective of a plan: an operation of a backend, or Scalewise's own ring all-reduce."""

    operation: str
    backend: str
    ranks: int
    bytes: int
    """Bytes of the whole tensor."""
    piece_MB: float | None = None
    """Size of the pieces of Scalewise's own ring; None for an operation of the backend."""
    stride: int = 1
    """Distance between neighbouring ranks of the group. The ranks in between form groups that run the same collective
    at the same time."""
    groups: int = 1
    """Number of groups of consecutive ranks that run this collective at the same time."""

    @property
    def sends(self) -> tuple[Send, ...]:
        if self.piece_MB is not None:
            return ring_sends(self.ranks, self.bytes, self.piece_MB) if self.ranks > 1 else ()
        return sends(self.backend, self.operation, self.ranks, self.bytes)
