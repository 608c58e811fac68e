"""Whether transfers get into each other's way: timed alone, and together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


BOTH_WAYS = ((0, 1), (1, 0))
APART = ((0, 1), (2, 3))


@dataclass(frozen=True)
class Together:
    """Two transfers at once, as all ranks agree."""

    over_alone: float
    """How many times as long as one they take: two pairs where there are four ranks, else two ranks both ways."""
    both_ways_GBps: float
    """What two ranks send each other at once, both together."""


def two_at_once(worker: Worker, bytes: int = BYTES) -> Together:
    alone = _typical(worker, BOTH_WAYS[:1], bytes)
    both_ways = _typical(worker, BOTH_WAYS, bytes)
    both = _typical(worker, APART, bytes) if worker.world >= 4 else both_ways
    return Together(both / alone, 2 * bytes / both_ways / 1e9)


def _typical(worker: Worker, pairs: Sequence[tuple[int, int]], bytes: int) -> float:
    """Seconds until all of them have arrived, the slowest rank's; the first time is dropped."""
    taken = [_once(worker, pairs, bytes) for _ in range(REPEATS + 1)][1:]
    told = torch.tensor([median(taken)], device=worker.device if worker.backend == "nccl" else "cpu")
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return float(told)


def _once(worker: Worker, pairs: Sequence[tuple[int, int]], bytes: int) -> float:
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
