"""Point-to-point transfers and sums over many of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Send:
    """Point-to-point send that is part of a collective."""

    source: int
    target: int
    bytes: int
    """Bytes from source to target: payload and the backend's headers."""
    reply_bytes: int = 0
    """Bytes from target to source: gloo's notice that a buffer is ready."""
    after: tuple[int, ...] = ()
    """Indices in the collective of the sends that must arrive at the source first."""


def total_bytes(sends: Iterable[Send]) -> int:
    """Return the bytes sent, summed over all ranks."""
    return sum(send.bytes + send.reply_bytes for send in sends)


def sent_bytes(sends: Iterable[Send], rank: int) -> int:
    return sum(send.bytes * (send.source == rank) + send.reply_bytes * (send.target == rank) for send in sends)


def received_bytes(sends: Iterable[Send], rank: int) -> int:
    return sum(send.bytes * (send.target == rank) + send.reply_bytes * (send.source == rank) for send in sends)


def busiest_bytes(sends: Iterable[Send]) -> int:
    """Return the bytes sent plus received by the rank with the most traffic."""
    traffic: dict[int, int] = {}
    for send in sends:
        for rank in (send.source, send.target):
            traffic[rank] = traffic.get(rank, 0) + send.bytes + send.reply_bytes
    return max(traffic.values(), default=0)
