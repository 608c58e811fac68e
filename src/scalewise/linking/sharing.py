"""Whether transfers get into each other's way: timed alone, and together."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

from scalewise.linking.operations import synchronize
from scalewise.session.worker import Worker

BYTES = 16 * 2**20
REPEATS = 5
SHARED = 1.5
"""Two transfers that take this many times as long as one share a channel; on two of their own they would take 1."""


def transfers(world: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Two pairs where there are four ranks, else two ranks both ways."""
    return ((0, 1), (2, 3)) if world >= 4 else ((0, 1), (1, 0))


def together_over_alone(worker: Worker, bytes: int = BYTES) -> float:
    """How many times longer two transfers take together than one alone, as all ranks agree."""
    one, other = transfers(worker.world)
    alone = _typical(worker, [one], bytes)
    both = _typical(worker, [one, other], bytes)
    return both / alone


def _typical(worker: Worker, pairs: list[tuple[int, int]], bytes: int) -> float:
    """Seconds until all of them have arrived, the slowest rank's; the first time is dropped."""
    taken = [_once(worker, pairs, bytes) for _ in range(REPEATS + 1)][1:]
    told = torch.tensor([median(taken)], device=worker.device if worker.backend == "nccl" else "cpu")
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return float(told)


def _once(worker: Worker, pairs: list[tuple[int, int]], bytes: int) -> float:
    # gloo's sockets are the host's, also between slices of a GPU.
    device = worker.device if worker.backend == "nccl" else torch.device("cpu")
    leaving, arriving = (torch.ones(bytes // 4, device=device) for _ in range(2))
    operations = [dist.P2POp(dist.irecv, arriving, source) for source, target in pairs if worker.rank == target]
    operations += [dist.P2POp(dist.isend, leaving, target) for source, target in pairs if worker.rank == source]
    dist.barrier()
    synchronize(device)
    started = perf_counter()
    if operations:
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    synchronize(device)
    return perf_counter() - started
