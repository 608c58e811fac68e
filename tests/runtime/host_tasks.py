"""Tasks that test memory shared by ranks."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from scalewise.engines.central_storage import shared_zeros
from scalewise.launch.worker import Worker


def write_in_turn(worker: Worker) -> tuple[list[float], bool]:
    """Write the row of this rank; return the whole tensor and whether its memory is mapped once."""
    tensor = shared_zeros((worker.world, 2), torch.float64, worker.rank, worker.world)
    tensor[worker.rank] += worker.rank + 1
    dist.barrier()
    return tensor.flatten().tolist(), len(shared_maps()) == 1


def maps_left(_: Worker) -> int:
    return len(shared_maps())


def shared_maps() -> list[str]:
    """List the shared memory of Scalewise that this process maps."""
    return [line for line in Path(f"/proc/{os.getpid()}/maps").read_text().splitlines() if "memfd:scalewise" in line]
