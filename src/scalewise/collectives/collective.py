"""One collective over all ranks of a group, kept whole: thousands of ranks cost a plan no more than two."""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.collectives import sends
from scalewise.collectives.ring import ring_sends
from scalewise.collectives.send import Send


@dataclass(frozen=True)
class Collective:
    """What `collectives.sends` takes; `ring` is our own ring in pieces, else a backend's operation."""

    operation: str
    backend: str
    ranks: int
    bytes: int
    """Of the whole tensor."""
    piece_MB: float | None = None
    stride: int = 1
    """Between every so-manieth rank, while the ranks between them do the same: groups that share models."""
    groups: int = 1
    """So many like it, of ranks in a row each, are at it at the same time."""

    @property
    def sends(self) -> tuple[Send, ...]:
        if self.piece_MB is not None:
            return ring_sends(self.ranks, self.bytes, self.piece_MB) if self.ranks > 1 else ()
        return sends(self.backend, self.operation, self.ranks, self.bytes)
