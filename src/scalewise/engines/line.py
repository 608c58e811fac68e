"""Ranks that hold one model between them."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Line:
    """In the order of its stages: stage s is on the rank `ranks[s % len(ranks)]`."""

    ranks: tuple[int, ...]
    """Of the whole run."""
    group: ProcessGroup | None = None
    """Of these ranks; None: they are all there are."""
    part: int = 0
    """Which share of every batch is theirs, of how many."""
    parts: int = 1

    def home(self, stage: int) -> int:
        return self.ranks[stage % len(self.ranks)]
