"""What ranks do together, timed on every rank: operations from a kilobyte to 64 MB, over the first so many ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from scalewise.session.worker import Worker
from scalewise.step.gloo_threads import let_senders_finish
from scalewise.step.ring import RingAllReduce
from scalewise.step.wire import Wire

KB = 1024
GROWTH = 4
SIZES = tuple(KB * GROWTH**power for power in range(9))
"""1 KB to 64 MB."""
FEWEST, MOST = 3, 60
BUSY_CYCLES = 2_000_000
"""Of a GPU, about a millisecond."""
LONGEST_SECONDS = 1.5
"""Of one call: what would take longer is left out, and larger sizes too."""

# Renamed in torch 2.13.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Call = Callable[[], object]
Span = tuple[float, float]
"""When a call began and ended, by a clock that all processes of a machine share."""


class Timed(NamedTuple):
    """Calls of one operation at one size, as one rank saw them."""

    operation: str
    bytes: int
    """Of the whole tensor."""
    spans: list[Span]


def seconds_of(ranks: Sequence[Timed]) -> float:
    """The median call, from the last rank's start to the last rank's end: ranks leave a barrier one after the other."""
    calls = zip(*(rank.spans for rank in ranks), strict=True)
    return float(median(max(end for _, end in call) - max(start for start, _ in call) for call in calls))


class Refused(NamedTuple):
    """The backend does not have this operation for these devices."""

    operation: str
    reason: str


def time_operations(
    worker: Worker, ranks: int, operations: tuple[str, ...], seconds: float, sizes: tuple[int, ...] = SIZES
) -> list[Timed | Refused]:
    """For each size `seconds` or so; empty on ranks that take no part."""
    group = dist.new_group(list(range(ranks))) if ranks < worker.world else dist.group.WORLD
    let_senders_finish()
    if worker.rank >= ranks:
        return []
    assert isinstance(group, dist.ProcessGroup)
    timed: list[Timed | Refused] = []
    for operation in operations:
        worker.report((operation, ranks))
        for size in sizes:
            call, bytes = make_call(operation, worker, group, ranks, size)
            try:
                found = time_calls(call, worker, group, seconds)
            except RuntimeError as error:
                if size > sizes[0]:
                    raise
                timed.append(Refused(operation, str(error).splitlines()[0]))
                break
            timed.append(Timed(operation, bytes, found))
            if agreed(max(end - start for start, end in found), worker, group) * GROWTH > LONGEST_SECONDS:
                break
    return timed


def make_call(operation: str, worker: Worker, group: dist.ProcessGroup, ranks: int, bytes: int) -> tuple[Call, int]:
    """One call of the operation, and the bytes of its whole tensor: as many as can be shared out evenly."""
    elements = max(1, bytes // 4 // ranks) * ranks
    whole = torch.ones(elements, device=worker.device)
    shard = torch.ones(elements // ranks, device=worker.device)
    wire = Wire(worker.device)
    last = ranks - 1

    def send() -> None:
        """From the first rank to the last."""
        if worker.rank == 0:
            wire.send([(whole, last)])
        elif worker.rank == last:
            wire.receive([(whole, 0)])

    calls: dict[str, Call] = {
        "broadcast": lambda: dist.broadcast(whole, 0, group),
        "reduce": lambda: dist.reduce(whole, 0, group=group),
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: _all_gather(whole, shard, group=group),
        "reduce_scatter": lambda: _reduce_scatter(shard, whole, group=group),
        "send": send,
    }
    if operation == "ring":
        ring = RingAllReduce(group)
        return lambda: ring(whole), 4 * elements
    return calls[operation], 4 * elements


def time_calls(call: Call, worker: Worker, group: dist.ProcessGroup, seconds: float) -> list[Span]:
    """Calls one by one, all ranks meeting before each; the first two are dropped."""
    for _ in range(2):
        start, end = _once(call, worker, group)
    count = min(MOST, max(FEWEST, int(seconds / max(agreed(end - start, worker, group), 1e-6))))
    return [_once(call, worker, group) for _ in range(count)]


def agreed(value: float, worker: Worker, group: dist.ProcessGroup) -> float:
    """The largest of all ranks', so that all decide alike."""
    device = worker.device if worker.backend == "nccl" else torch.device("cpu")
    told = torch.tensor([value], device=device)
    dist.all_reduce(told, dist.ReduceOp.MAX, group=group)
    return float(told)


def _once(call: Call, worker: Worker, group: dist.ProcessGroup) -> Span:
    """On a GPU behind some work, as in a step: the host has asked for it by the time that what it sends is there."""
    dist.barrier(group)
    synchronize(worker.device)
    started = perf_counter()
    if worker.device.type == "cuda":
        started += _busy_seconds(worker.device)
        torch.cuda._sleep(BUSY_CYCLES)
    call()
    synchronize(worker.device)
    return started, perf_counter()


@cache
def _busy_seconds(device: torch.device) -> float:
    """Of that work alone."""

    def alone() -> float:
        synchronize(device)
        started = perf_counter()
        torch.cuda._sleep(BUSY_CYCLES)
        synchronize(device)
        return perf_counter() - started

    return median(alone() for _ in range(31))  # the first of them find a GPU whose clock has yet to rise


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def some_bytes(bytes: int, device: torch.device) -> Tensor:
    return torch.ones(bytes // 4, device=device)
