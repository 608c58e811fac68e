"""One point-to-point transfer, and sums over many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Send:
    """What one rank sends to another as one piece of a collective."""

    source: int
    target: int
    bytes: int
    """All that crosses from source to target: payload and the backend's headers."""
    reply_bytes: int = 0
    """What crosses back from target to source on account of it: gloo's notice that a buffer is ready."""
    after: tuple[int, ...] = ()
    """Positions, in the same collective, of the sends that must have arrived at the source first."""


def total_bytes(sends: Iterable[Send]) -> int:
    """The bytes sent over all ranks."""
    return sum(send.bytes + send.reply_bytes for send in sends)


def sent_bytes(sends: Iterable[Send], rank: int) -> int:
    return sum(send.bytes * (send.source == rank) + send.reply_bytes * (send.target == rank) for send in sends)


def received_bytes(sends: Iterable[Send], rank: int) -> int:
    return sum(send.bytes * (send.target == rank) + send.reply_bytes * (send.source == rank) for send in sends)


def busiest_bytes(sends: Iterable[Send]) -> int:
    """The most that one rank sent plus received."""
    through: dict[int, int] = {}
    for send in sends:
        for rank in (send.source, send.target):
            through[rank] = through.get(rank, 0) + send.bytes + send.reply_bytes
    return max(through.values(), default=0)
