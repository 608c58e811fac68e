"""Point-to-point transfers of tensors between ranks, whatever device they are on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from scalewise.step.staging import Staging


class Wire:
    """Sends and receives tensors, several at once; between slices through pinned memory, which gloo can read."""

    def __init__(self, device: torch.device) -> None:
        self.staging = Staging(device) if device.type == "cuda" and dist.get_backend() == "gloo" else None

    def send(self, tensors: Sequence[tuple[Tensor, int]]) -> None:
        """Each tensor to its rank, all under way together; returns when all have left."""
        works = [
            dist.isend(self._out(tensor, slot), target)
            for slot, (tensor, target) in enumerate(tensors)
            if tensor.numel()
        ]
        for work in filter(None, works):
            work.wait()

    def receive(self, tensors: Sequence[tuple[Tensor, int]], on_first: Callable[[], None] | None = None) -> None:
        """Into each tensor what its rank sends, in whatever order it comes. `on_first`: the first one is there."""
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

    def _out(self, tensor: Tensor, slot: int) -> Tensor:
        return self.staging.filled(("out", slot), tensor) if self.staging else tensor.contiguous()
