"""Ranks in two dimensions: those that share a model, and those that hold the same part of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache

import torch.distributed as dist

from scalewise.step.gloo_threads import let_senders_finish


@dataclass(frozen=True)
class Groups:
    """Of one rank."""

    model: dist.ProcessGroup
    """Ranks in a row, that have a model between them."""
    data: dist.ProcessGroup | None
    """The ranks of all models that hold the same part; None where there is one model."""


@cache
def groups_of(world: int, parts: int, rank: int, timeout_seconds: float) -> Groups:
    """Made once per process: its connections stay open, for the runs that follow.

    world 4, parts 2: models {0, 1} {2, 3}, data {0, 2} {1, 3}.
    """
    everyone: dist.ProcessGroup = dist.group.WORLD  # type: ignore[assignment]
    timeout = timedelta(seconds=timeout_seconds)
    rows = [list(range(first, first + parts)) for first in range(0, world, parts)]
    columns = [list(range(part, world, parts)) for part in range(parts)]

    def mine(groups: list[list[int]]) -> dist.ProcessGroup:
        if len(groups) == 1:
            return everyone
        made: dict[tuple[int, ...], dist.ProcessGroup] = {
            tuple(ranks): dist.new_group(ranks, timeout=timeout) for ranks in groups
        }
        let_senders_finish()
        return next(group for ranks, group in made.items() if rank in ranks)

    return Groups(mine(rows), mine(columns) if parts < world else None)
