"""Time collectives and transfers between ranks."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from scalewise.core.statistics import low_quantile
from scalewise.engines.communication import Wire
from scalewise.launch.worker import Worker
from scalewise.runtime.exchange import all_gather_values
from scalewise.runtime.process_settings import let_senders_finish
from scalewise.runtime.ring_all_reduce import RingAllReduce

Pairs = dict[tuple[int, int], str]

LEVELS = (
    "nvlink",
    "same board",
    "one PCIe switch",
    "several PCIe switches",
    "one host bridge",
    "one NUMA node",
    "system",
)
"""Kinds of connection between two GPUs, from the closest to the most distant."""


@dataclass(frozen=True)
class Branch:
    """GPUs, or groups of GPUs, with the same kind of connection."""

    joined_by: str
    members: tuple[int | Branch, ...]

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(
            device
            for member in self.members
            for device in (member.devices if isinstance(member, Branch) else (member,))
        )


@dataclass(frozen=True)
class Topology:
    """Names of all GPUs, and the closest kind of connection between every two of them."""

    names: tuple[str, ...]
    between: Pairs = field(default_factory=dict)

    @property
    def tree(self) -> Branch:
        groups: list[int | Branch] = list(range(len(self.names)))
        for level in LEVELS:
            groups = self._joined(groups, level)
        return groups[0] if len(groups) == 1 and isinstance(groups[0], Branch) else Branch("system", tuple(groups))

    def _joined(self, groups: Sequence[int | Branch], level: str) -> list[int | Branch]:
        """Merge groups whose devices are all connected at this level or closer."""
        remaining, branches = list(groups), []
        while remaining:
            members = [remaining.pop(0)]
            for other in list(remaining):
                if all(self._close(member, other, level) for member in members):
                    members.append(other)
                    remaining.remove(other)
            branches.append(members[0] if len(members) == 1 else Branch(level, tuple(members)))
        return branches

    def _close(self, one: int | Branch, other: int | Branch, level: str) -> bool:
        allowed = LEVELS[: LEVELS.index(level) + 1]
        return all(self.between[min(a, b), max(a, b)] in allowed for a in _devices(one) for b in _devices(other))


def _devices(member: int | Branch) -> tuple[int, ...]:
    return member.devices if isinstance(member, Branch) else (member,)


def nvml_topology() -> Topology | None:
    """Topology of the NVIDIA GPUs of this machine; None without an NVIDIA driver or GPU."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        if not handles:
            return None
        between = {(a, b): _between(handles[a], handles[b]) for a, b in combinations(range(len(handles)), 2)}
        return Topology(tuple(str(pynvml.nvmlDeviceGetName(handle)) for handle in handles), between)
    finally:
        pynvml.nvmlShutdown()


def _between(one: object, other: object) -> str:
    import pynvml

    if _bridged(one, other):
        return "nvlink"
    ancestors = {
        pynvml.NVML_TOPOLOGY_INTERNAL: "same board",
        pynvml.NVML_TOPOLOGY_SINGLE: "one PCIe switch",
        pynvml.NVML_TOPOLOGY_MULTIPLE: "several PCIe switches",
        pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "one host bridge",
        pynvml.NVML_TOPOLOGY_NODE: "one NUMA node",
    }
    try:
        return ancestors.get(pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other), "system")
    except pynvml.NVMLError:
        return "system"


def _bridged(one: object, other: object) -> bool:
    """Whether two GPUs have peer-to-peer access over NVLink, directly or through switches."""
    import pynvml

    try:
        status = pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except pynvml.NVMLError:
        return False
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


KB = 1024
GROWTH = 4
SIZES = tuple(KB * GROWTH**power for power in range(9))
"""Tensor sizes in bytes: 1 KB to 64 MB."""
MOST_CALLS = 80
"""Largest number of timed calls of one operation at one size."""
ROUNDS = 5
"""Rounds over all operations and sizes, each with a part of the calls, so that a few seconds of other load on the
machine disturb only some of the calls of a size."""
UNDISTURBED = 0.1
"""Share of the calls that other programs on a busy machine probably do not disturb."""
UNSTABLE = 1.0
"""A size is unstable if the median call takes this much longer, relative to the undisturbed calls."""
BUSY_CYCLES = 2_000_000
"""GPU cycles of work before a timed call, about a millisecond."""
LONGEST_SECONDS = 0.5
"""Longest call that is timed. Sizes that would take longer are skipped."""

# Renamed in torch 2.13.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Call = Callable[[], object]
Span = tuple[float, float]
"""Start and end of a call, by a clock that all processes of a machine share."""


class TimedCalls(NamedTuple):
    """Timed calls of one operation at one size, on one rank."""

    operation: str
    bytes: int
    """Bytes of the whole tensor."""
    spans: list[Span]


class CallSeconds(NamedTuple):
    """Seconds of one operation at one size."""

    seconds: float
    unstable: bool
    """Whether the calls differ so much that other programs must have disturbed many of them."""


def seconds_of(ranks: Sequence[TimedCalls]) -> CallSeconds:
    """Seconds of an undisturbed call, from the last rank's start to the last rank's end.

    Ranks leave the barrier before a call one after the other, so the call starts when the last rank does. Other
    programs delay single ranks. A delayed start makes the call itself look short, as the data may be there already, so
    the calls that are shortest from the first rank's start on count.
    """
    calls = [
        (max(end for _, end in call) - min(start for start, _ in call), max(start for start, _ in call), call)
        for call in zip(*(rank.spans for rank in ranks), strict=True)
    ]
    calls.sort(key=lambda timed: timed[0])
    undisturbed = calls[: max(1, int(UNDISTURBED * len(calls)))]
    seconds = median(max(end for _, end in call) - start for _, start, call in undisturbed)
    return CallSeconds(seconds, median(whole for whole, _, _ in calls) > (1 + UNSTABLE) * undisturbed[-1][0])


PINGS = 100


@dataclass(frozen=True)
class ClockReading:
    """Difference between the clock of a rank and that of rank 0, at one time."""

    time: float
    """Time by the clock of this rank."""
    ahead_seconds: float


BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Identifier of the running kernel, whose processes share a clock."""


def read_clock(worker: Worker) -> ClockReading:
    """Compare the clock of this rank with that of rank 0: machines count from different starts.

    Rank 0 answers pings with its time. The shortest round trip has the smallest error, at most half of its duration.
    Ranks on one machine share a clock and need no pings, also if they are on different emulated hosts.
    """
    group = dist.new_group(backend="gloo")
    kernels = all_gather_values(BOOT.read_text() if BOOT.exists() else platform.node(), group)
    if len(set(kernels)) == 1:
        return ClockReading(perf_counter(), 0.0)
    let_senders_finish()
    reading = ClockReading(perf_counter(), 0.0)
    for rank in range(1, worker.world):
        dist.barrier(group)
        if worker.rank == rank:
            shortest = float("inf")
            for _ in range(PINGS):
                answer = torch.zeros(1, dtype=torch.float64)
                sent = perf_counter()
                dist.send(answer, 0, group)
                dist.recv(answer, 0, group)
                received = perf_counter()
                if received - sent < shortest:
                    shortest = received - sent
                    reading = ClockReading(received, (sent + received) / 2 - float(answer))
        elif worker.rank == 0:
            for _ in range(PINGS):
                ping = torch.zeros(1, dtype=torch.float64)
                dist.recv(ping, rank, group)
                dist.send(torch.tensor([perf_counter()], dtype=torch.float64), rank, group)
    return reading


def time_on_first(time: float, before: ClockReading, after: ClockReading) -> float:
    """Convert a time to the clock of rank 0; clocks drift apart, so the difference is interpolated."""
    drift = (after.ahead_seconds - before.ahead_seconds) / max(after.time - before.time, 1e-9)
    return time - before.ahead_seconds - (time - before.time) * drift


def on_clock_of_first(calls: TimedCalls, before: ClockReading, after: ClockReading) -> TimedCalls:
    """Convert the times of calls to the clock of rank 0."""
    spans = [(time_on_first(start, before, after), time_on_first(end, before, after)) for start, end in calls.spans]
    return calls._replace(spans=spans)


class UnsupportedOperation(NamedTuple):
    """Operation that the backend does not support on these devices."""

    operation: str
    reason: str


@dataclass
class _Repeated:
    """Calls of one operation at one size, timed in several rounds."""

    call: Call
    timed: TimedCalls
    fastest: float
    """Seconds of the fastest call so far, of the slowest rank."""

    def time(self, worker: Worker, group: dist.ProcessGroup, seconds: float) -> None:
        """Time as many calls as fit `seconds`, at least one."""
        count = max(1, min(MOST_CALLS // ROUNDS, int(seconds / max(self.fastest, 1e-6))))
        spans = [_time_call(self.call, worker, group) for _ in range(count)]
        self.timed.spans.extend(spans)
        self.fastest = min(self.fastest, max_over_ranks(min(end - start for start, end in spans), worker, group))


def time_operations(
    worker: Worker, ranks: int, operations: tuple[str, ...], seconds: float, sizes: tuple[int, ...] = SIZES
) -> list[TimedCalls | UnsupportedOperation]:
    """Time operations on the first `ranks` ranks, about `seconds` per size; empty on the other ranks.

    The calls of a size are spread over rounds through all operations and sizes.
    """
    group = dist.new_group(list(range(ranks))) if ranks < worker.world else dist.group.WORLD
    let_senders_finish()
    if worker.rank >= ranks:
        return []
    assert isinstance(group, dist.ProcessGroup)
    tensors = _Tensors(worker.device, sizes[-1], ranks)
    repeated: list[_Repeated] = []
    unsupported: list[UnsupportedOperation] = []
    for operation in operations:
        worker.report((operation, ranks))
        ring = RingAllReduce(group) if operation == "ring" else None
        for size in sizes:
            call, bytes = make_call(operation, worker, group, tensors, size, ring)
            try:
                longest = _warm_up(call, worker, group)
            except RuntimeError as error:
                if size > sizes[0]:
                    raise
                unsupported.append(UnsupportedOperation(operation, str(error).splitlines()[0]))
                break
            repeated.append(_Repeated(call, TimedCalls(operation, bytes, []), longest))
            if longest * GROWTH > LONGEST_SECONDS:
                break
    for number in range(ROUNDS):
        worker.report((f"round {number + 1} of {ROUNDS}", ranks))
        for entry in repeated:
            entry.time(worker, group, seconds / ROUNDS)
    return [*(entry.timed for entry in repeated), *unsupported]


class _Tensors:
    """Memory that the calls of all operations and sizes share."""

    def __init__(self, device: torch.device, largest_bytes: int, ranks: int) -> None:
        self.ranks = ranks
        self._whole = torch.ones(largest_bytes // 4 + ranks, device=device)
        self._shard = torch.ones(largest_bytes // 4 // ranks + 1, device=device)

    def of(self, bytes: int) -> tuple[Tensor, Tensor]:
        """Tensor of about this size, a multiple of the number of ranks, and the shard of one rank."""
        elements = max(1, bytes // 4 // self.ranks)
        return self._whole[: elements * self.ranks], self._shard[:elements]


def make_call(
    operation: str,
    worker: Worker,
    group: dist.ProcessGroup,
    tensors: _Tensors,
    bytes: int,
    ring: RingAllReduce | None = None,
) -> tuple[Call, int]:
    """Return a function that runs the operation once, and the bytes of its whole tensor."""
    whole, shard = tensors.of(bytes)
    wire = Wire(worker.device)
    last = tensors.ranks - 1

    def send() -> None:
        """Send from the first rank to the last."""
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
    if ring is not None:
        calls[operation] = lambda: ring(whole)
    return calls[operation], 4 * whole.numel()


def _warm_up(call: Call, worker: Worker, group: dist.ProcessGroup) -> float:
    """Call twice and return the seconds of the second call on the slowest rank."""
    for _ in range(2):
        start, end = _time_call(call, worker, group)
    return max_over_ranks(end - start, worker, group)


def max_over_ranks(value: float, worker: Worker, group: dist.ProcessGroup) -> float:
    """Largest value over all ranks, so that all ranks make the same decision."""
    device = worker.device if worker.backend == "nccl" else torch.device("cpu")
    largest = torch.tensor([value], device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    return float(largest)


def _time_call(call: Call, worker: Worker, group: dist.ProcessGroup) -> Span:
    """Time one call.

    On a GPU the call is queued behind other work, as in a training step, so that its launch overhead is hidden.
    """
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
    """Seconds of the BUSY_CYCLES of work by itself."""

    def sleep_seconds() -> float:
        synchronize(device)
        started = perf_counter()
        torch.cuda._sleep(BUSY_CYCLES)
        synchronize(device)
        return perf_counter() - started

    return median(sleep_seconds() for _ in range(31))  # the median ignores the first calls, before the clock rises


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def some_bytes(bytes: int, device: torch.device) -> Tensor:
    return torch.ones(bytes // 4, device=device)


BYTES = 16 * 2**20
REPEATS = 5
SHARED_CHANNEL_RATIO = 1.5
"""Two simultaneous transfers share a channel if they take this many times as long as one. On separate channels the
ratio is 1."""

BOTH_DIRECTIONS = ((0, 1), (1, 0))
SEPARATE_PAIRS = ((0, 1), (2, 3))


@dataclass(frozen=True)
class ConcurrentTransfers:
    """Two simultaneous transfers compared with one; equal on all ranks."""

    over_alone: float
    """Seconds of two simultaneous transfers divided by those of one: between two separate pairs of ranks if there are
    four ranks, otherwise between two ranks in both directions."""
    both_ways_GBps: float
    """Total bandwidth of two ranks that send to each other at the same time."""


def two_at_once(worker: Worker, bytes: int = BYTES) -> ConcurrentTransfers:
    pairs = [BOTH_DIRECTIONS[:1], BOTH_DIRECTIONS, *([SEPARATE_PAIRS] if worker.world >= 4 else [])]
    alone, both_directions, *separate = _seconds_in_turn(worker, pairs, bytes)
    two = separate[0] if separate else both_directions
    return ConcurrentTransfers(two / alone, 2 * bytes / both_directions / 1e9)


def _seconds_in_turn(worker: Worker, transfers: Sequence[Sequence[tuple[int, int]]], bytes: int) -> list[float]:
    """Seconds until all pairs of each entry have transferred, of the slowest rank.

    The entries take turns, after a first round that warms up; the lower quartile of the rounds counts.
    """
    rounds = [[_transfer_seconds(worker, pairs, bytes) for pairs in transfers] for _ in range(REPEATS + 1)][1:]
    quartiles = [low_quantile(repeats) for repeats in zip(*rounds, strict=True)]
    slowest = torch.tensor(quartiles, device=worker.device if worker.backend == "nccl" else "cpu")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return [float(seconds) for seconds in slowest]


def _transfer_seconds(worker: Worker, pairs: Sequence[tuple[int, int]], bytes: int) -> float:
    # gloo transfers host memory, also between slices of a GPU.
    device = worker.device if worker.backend == "nccl" else torch.device("cpu")
    sent, received = (torch.ones(bytes // 4, device=device) for _ in range(2))
    operations = [dist.P2POp(dist.irecv, received, source) for source, target in pairs if worker.rank == target]
    operations += [dist.P2POp(dist.isend, sent, target) for source, target in pairs if worker.rank == source]
    dist.barrier()
    synchronize(device)
    started = perf_counter()
    if operations:
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    synchronize(device)
    return perf_counter() - started
