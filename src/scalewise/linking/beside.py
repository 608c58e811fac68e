"""What devices cost each other: compute beside siblings that compute, and beside an all-reduce under way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
import torch.distributed as dist

from scalewise.linking.kernels import SIDE, Pace, pace_of, streamed_GBps
from scalewise.linking.operations import agreed, some_bytes, synchronize
from scalewise.session.worker import Worker

REDUCED_BYTES = 16 * 2**20
STREAMED_BY_A_HOST_BYTES = 256 * 2**20


def pace_alone(worker: Worker, seconds: float) -> Pace | None:
    """The first rank's, while the others wait; None on those."""
    dist.barrier()
    found = pace_of(worker.device, seconds) if worker.rank == 0 else None
    worker.report("alone")
    dist.barrier()
    return found


def pace_together(worker: Worker, seconds: float) -> Pace:
    """All ranks' at once, in step as in training: all begin a piece together, and the slowest at it counts.

    Cores of a shared machine are slow by turns, so a step of all takes longer than one of any.
    """
    world = dist.group.WORLD
    assert world is not None
    return pace_of(worker.device, seconds, lambda taken: agreed(taken, worker, world))


def host_memory_together(worker: Worker, seconds: float) -> float:
    """GB/s of each rank's process in the host's memory, all at once and in step; the caches are those of all cores."""
    world = dist.group.WORLD
    assert world is not None
    in_step = partial(agreed, worker=worker, group=world)
    return streamed_GBps(torch.device("cpu"), seconds, in_step, STREAMED_BY_A_HOST_BYTES)


@dataclass(frozen=True)
class Beside:
    """A stretch of compute on one rank, alone and with all-reduces of `bytes` under way all the time."""

    alone_seconds: float
    seconds: float
    """Of the same compute beside them."""
    reduced: int
    """How many all-reduces came to their end meanwhile, the last one in part."""
    bytes: int
    reduce_seconds: float
    """Of one with nothing beside it."""

    @property
    def slowdown(self) -> float:
        return self.seconds / self.alone_seconds

    @property
    def taken_seconds(self) -> float:
        """What one all-reduce cost the compute."""
        return max(0.0, self.seconds - self.alone_seconds) / max(self.reduced, 1)


def compute_beside(worker: Worker, seconds: float) -> Beside:
    """All ranks compute the same, and reduce the same number of times."""
    assert dist.group.WORLD is not None
    side = SIDE[worker.device.type]
    one, other = torch.randn(side, side, device=worker.device), torch.randn(side, side, device=worker.device)
    tensor = some_bytes(REDUCED_BYTES, worker.device)

    def compute(times: int) -> float:
        synchronize(worker.device)
        started = perf_counter()
        for _ in range(times):
            torch.mm(one, other)
        synchronize(worker.device)
        return perf_counter() - started

    def reduce() -> float:
        dist.barrier()
        started = perf_counter()
        dist.all_reduce(tensor)
        synchronize(worker.device)
        return perf_counter() - started

    compute(3)
    slowest = agreed(compute(20) / 20, worker, dist.group.WORLD)
    alone_reduce = sorted(reduce() for _ in range(5))[2]
    count = max(1, int(seconds / 2 / agreed(alone_reduce, worker, dist.group.WORLD)))
    # Long enough to outlast all of them, were each to take three times as long.
    times = max(1, int(3 * count * alone_reduce / slowest))
    times = int(agreed(times, worker, dist.group.WORLD))
    dist.barrier()
    alone = compute(times)
    dist.barrier()
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(count)]
    both = compute(times)
    for work in works:
        if work is not None:
            work.wait()
    synchronize(worker.device)
    return Beside(alone, both, count, REDUCED_BYTES, alone_reduce)
