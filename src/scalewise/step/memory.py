"""A device's peak memory, of one run alone."""

from __future__ import annotations

import torch


def forget_peak_memory(device: torch.device) -> None:
    """This process may have trained before; where CUDA has not started there is nothing to forget."""
    if device.type == "cuda" and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
