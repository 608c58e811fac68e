"""Which samples each rank computes at each step: pure functions of the seed, so that ranks agree without asking."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scalewise.strategies.shares import split


def epoch_order(seed: int, epoch: int, samples: int) -> Tensor:
    """The shuffled sample numbers of one epoch; the same on every rank, strategy and resumed run."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(samples, generator=generator)


@dataclass(frozen=True)
class Shard:
    """Samples that one rank computes in one go, and what part of the whole batch they are."""

    rows: Tensor
    weight: float
    """Samples here / samples in the global batch: the weight of this shard's mean loss in the batch's."""


def shards_of(rows: Tensor, parts: int, part: int, accumulate: int = 1) -> list[Shard]:
    """A rank's share of one global batch, in `accumulate` pieces.

    A piece with no samples still takes part in collectives, so it gets the batch's first sample with weight zero.
    """
    mine = rows[split(len(rows), parts, part)]
    pieces = [mine[split(len(mine), accumulate, piece)] for piece in range(min(accumulate, max(len(mine), 1)))]
    return [Shard(piece, len(piece) / len(rows)) if len(piece) else Shard(rows[:1], 0.0) for piece in pieces]
