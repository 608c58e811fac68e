"""Host memory that a GPU copies from and to, and that gloo can read: kept, because pinning it is slow."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor


class Staging:
    """One buffer for each key: the largest that it has needed."""

    def __init__(self, device: torch.device) -> None:
        """Of a GPU; memory for a CPU needs no pinning."""
        self.pinned = device.type == "cuda"
        self.buffers: dict[Hashable, Tensor] = {}

    def like(self, key: Hashable, tensor: Tensor) -> Tensor:
        kept = self.buffers.get(key)
        if kept is None or kept.nbytes < tensor.nbytes:
            kept = self.buffers[key] = torch.empty(tensor.nbytes, dtype=torch.uint8, pin_memory=self.pinned)
        return kept[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def filled(self, key: Hashable, tensor: Tensor) -> Tensor:
        """With a copy, which is there when this returns."""
        return self.like(key, tensor).copy_(tensor)
