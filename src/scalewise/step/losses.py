"""Losses that ranks hold parts of."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def sum_losses(losses: Tensor, device: torch.device) -> Tensor:
    """Add up every rank's weighted losses; once per epoch. NCCL wants them on the device."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return losses.cpu()
    losses = losses.to(device if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(losses)
    return losses.cpu()
