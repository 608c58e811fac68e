"""Point-to-point transfers of tensors between ranks, whatever device they are on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor


class Wire:
    """Sends and receives tensors, several at once; between slices through pinned memory, which gloo can read."""

    def __init__(self, device: torch.device) -> None:
        self.staged = device.type == "cuda" and dist.get_backend() == "gloo"
        self.buffers: dict[tuple[str, int], Tensor] = {}

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
                buffer = self._buffer("in", slot, tensor) if self.staged else tensor
                waiting.append((dist.irecv(buffer, source), buffer, tensor))
        for work, buffer, tensor in waiting:
            if work:
                work.wait()
            if self.staged:
                tensor.copy_(buffer)
            if on_first:
                on_first()
                on_first = None

    def _out(self, tensor: Tensor, slot: int) -> Tensor:
        if not self.staged:
            return tensor.contiguous()
        buffer = self._buffer("out", slot, tensor)
        buffer.copy_(tensor)
        return buffer

    def _buffer(self, way: str, slot: int, like: Tensor) -> Tensor:
        """Pinned memory is slow to get, so it is kept: the largest that each way and place in a list has needed."""
        kept = self.buffers.get((way, slot))
        if kept is None or kept.nbytes < like.nbytes:
            kept = self.buffers[way, slot] = torch.empty(like.nbytes, dtype=torch.uint8, pin_memory=True)
        return kept[: like.nbytes].view(like.dtype).view(like.shape)
