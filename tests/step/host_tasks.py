"""What ranks do with memory that they share."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from scalewise.session.worker import Worker
from scalewise.step.host_memory import shared_zeros


def write_in_turn(worker: Worker) -> tuple[list[float], bool]:
    """Each rank writes its element; what all then see, and whether its descriptor is still open."""
    tensor = shared_zeros((worker.world, 2), torch.float64, worker.rank, worker.world)
    tensor[worker.rank] += worker.rank + 1
    dist.barrier()
    return tensor.flatten().tolist(), len(shared_maps()) == 1


def maps_left(_: Worker) -> int:
    return len(shared_maps())


def shared_maps() -> list[str]:
    """Of this process, the memory made here."""
    return [line for line in Path(f"/proc/{os.getpid()}/maps").read_text().splitlines() if "memfd:scalewise" in line]
