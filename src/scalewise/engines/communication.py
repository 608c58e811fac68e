"""Process groups of ranks, and point-to-point transfers of tensors between ranks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from scalewise.runtime.process_settings import let_senders_finish


@dataclass(frozen=True)
class Groups:
    """Process groups that one rank belongs to."""

    model: dist.ProcessGroup
    """Consecutive ranks that together hold one model."""
    data: dist.ProcessGroup | None
    """Ranks that hold the same part of different copies of the model; None if there is one copy."""


@cache
def groups_of(world: int, parts: int, rank: int, timeout_seconds: float) -> Groups:
    """Create the groups once per process and reuse them in later runs, because their connections stay open.

    Example: world 4, parts 2 gives the model groups {0, 1} {2, 3} and the data groups {0, 2} {1, 3}.
    """
    everyone: dist.ProcessGroup = dist.group.WORLD  # type: ignore[assignment]
    timeout = timedelta(seconds=timeout_seconds)
    rows = [list(range(first, first + parts)) for first in range(0, world, parts)]
    columns = [list(range(part, world, parts)) for part in range(parts)]

    def own_group(groups: list[list[int]]) -> dist.ProcessGroup:
        if len(groups) == 1:
            return everyone
        created: dict[tuple[int, ...], dist.ProcessGroup] = {
            tuple(ranks): dist.new_group(ranks, timeout=timeout) for ranks in groups
        }
        let_senders_finish()
        return next(group for ranks, group in created.items() if rank in ranks)

    return Groups(own_group(rows), own_group(columns) if parts < world else None)


@dataclass(frozen=True)
class StageRanks:
    """Ranks of one pipeline in the order of their stages: stage s is on rank `ranks[s % len(ranks)]`."""

    ranks: tuple[int, ...]
    """Rank numbers within the whole run."""
    group: ProcessGroup | None = None
    """Process group of these ranks; None if they are all ranks of the run."""
    part: int = 0
    """Number of the share of every batch that this pipeline trains on."""
    parts: int = 1
    """Number of shares (pipelines)."""

    def rank_of(self, stage: int) -> int:
        """Return the rank that holds a stage."""
        return self.ranks[stage % len(self.ranks)]


class Staging:
    """Reusable host buffers by key; each has the largest size needed so far."""

    def __init__(self, device: torch.device) -> None:
        """Use pinned memory if the device is a GPU."""
        self.pinned = device.type == "cuda"
        self.buffers: dict[Hashable, Tensor] = {}

    def like(self, key: Hashable, tensor: Tensor) -> Tensor:
        """Return a buffer with the shape and dtype of the tensor."""
        buffer = self.buffers.get(key)
        if buffer is None or buffer.nbytes < tensor.nbytes:
            buffer = self.buffers[key] = torch.empty(tensor.nbytes, dtype=torch.uint8, pin_memory=self.pinned)
        return buffer[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def filled(self, key: Hashable, tensor: Tensor) -> Tensor:
        """Return a buffer that contains a copy of the tensor."""
        return self.like(key, tensor).copy_(tensor)


class Wire:
    """Sends and receives several tensors at once; between slices through pinned host memory, which gloo can read."""

    def __init__(self, device: torch.device) -> None:
        self.staging = Staging(device) if device.type == "cuda" and dist.get_backend() == "gloo" else None

    def send(self, tensors: Sequence[tuple[Tensor, int]]) -> None:
        """Send each tensor to its rank, all at the same time; return when all are sent."""
        works = [
            dist.isend(self._send_buffer(tensor, slot), target)
            for slot, (tensor, target) in enumerate(tensors)
            if tensor.numel()
        ]
        for work in filter(None, works):
            work.wait()

    def receive(self, tensors: Sequence[tuple[Tensor, int]], on_first: Callable[[], None] | None = None) -> None:
        """Receive each tensor from its rank; `on_first` is called when the first one has arrived."""
        waiting = []
        for slot, (tensor, source) in enumerate(tensors):
            if tensor.numel():
                buffer = self.staging.like(("in", slot), tensor) if self.staging else tensor
                waiting.append((dist.irecv(buffer, source), buffer, tensor))
        for work, buffer, tensor in waiting:
            if work:
                work.wait()
            if self.staging:
                tensor.copy_(buffer)
            if on_first:
                on_first()
                on_first = None

    def _send_buffer(self, tensor: Tensor, slot: int) -> Tensor:
        return self.staging.filled(("out", slot), tensor) if self.staging else tensor.contiguous()
