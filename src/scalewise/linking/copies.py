"""Copies between host memory and GPUs, one device's alone and all devices' at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from scalewise.linking.kernels import typical_seconds
from scalewise.session.worker import Worker

SMALL, LARGE = 4096, 64 * 2**20


@dataclass(frozen=True)
class Copy:
    """Pinned memory to the device and back, the slower of the two."""

    GBps: float
    latency_us: float


def copies_alone(worker: Worker, seconds: float) -> Copy | None:
    """The first device's, while the others wait; None on those."""
    dist.barrier()
    found = _copy(worker.device, seconds) if worker.rank == 0 else None
    dist.barrier()
    return found


def copies_together(worker: Worker, seconds: float) -> Copy:
    dist.barrier()
    found = _copy(worker.device, seconds)
    dist.barrier()
    return found


def _copy(device: torch.device, seconds: float) -> Copy:
    def slower(bytes: int) -> float:
        host = torch.empty(bytes, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(bytes, dtype=torch.uint8, device=device)
        return max(
            typical_seconds(lambda: there.copy_(host, non_blocking=True), device, seconds / 4),
            typical_seconds(lambda: host.copy_(there, non_blocking=True), device, seconds / 4),
        )

    latency = slower(SMALL)
    return Copy(LARGE / max(slower(LARGE) - latency, 1e-9) / 1e9, latency * 1e6)
