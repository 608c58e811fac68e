"""Time of one collective on a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from scalewise.hardware.cluster import RING, Cluster, Measured
from scalewise.hardware.collectives import PIECE_MB, Collective
from scalewise.predict.network import Network, Path, Traffic


def simulate_operations(after: Sequence[Sequence[int]], place: Callable[[int, float], float]) -> list[float]:
    """Simulate operations with dependencies and return their end times.

    `after` lists, for each operation, the operations that it waits for. `place(position, ready)` returns the end time
    of an operation that can start at time `ready`; it is called once per operation, in the order of these times.
    """
    waiting = [0] * len(after)
    followers: list[list[int]] = [[] for _ in after]
    for position, before in enumerate(after):
        distinct = set(before) if len(before) > 1 else before
        waiting[position] = len(distinct)
        for earlier in distinct:
            followers[earlier].append(position)
    ready = [0.0] * len(after)
    ends = [0.0] * len(after)
    queue = [(0.0, position) for position, count in enumerate(waiting) if not count]
    heapify(queue)
    while queue:
        start, position = heappop(queue)
        ends[position] = end = place(position, start)
        for follower in followers[position]:
            if end > ready[follower]:
                ready[follower] = end
            waiting[follower] -= 1
            if not waiting[follower]:
                heappush(queue, (ready[follower], follower))
    return ends


SEND_BY_SEND = 4
"""Largest number of ranks for which every send is simulated."""
FEW_HOSTS = 4
"""Largest number of hosts whose links are examined individually, because two hosts may share a link."""
FEW_RANKS = 16
"""Largest number of ranks for which the bytes of every send are added up."""


def collective_seconds(collective: Collective, network: Network) -> float:
    """Seconds of a collective, from the time at which all ranks have reached it."""
    launch = network.cluster.devices[0].launch_us * 1e-6
    measured = _measured(collective, network)
    if measured is not None:
        return measured
    pipelined = collective.backend == "nccl" and collective.operation in ("broadcast", "reduce")
    if collective.ranks <= SEND_BY_SEND and not pipelined and collective.bytes:
        return launch + _send_by_send(collective, network)
    return launch + _by_formula(collective, network)


def link_bytes(operation: str, ranks: int, bytes: int) -> float:
    """Bytes that the busiest link carries in each direction, on a ring or a chain."""
    if operation in ("broadcast", "reduce", "send"):
        return float(bytes)
    return bytes * (2 if operation == "all_reduce" else 1) * (ranks - 1) / ranks


def bytes_through_rank(collective: Collective) -> float:
    """Mean bytes that a rank sends plus receives.

    Each of N ranks forwards all parts but one, so the bytes of many ranks follow from those of a few.
    """
    few = replace(collective, ranks=min(collective.ranks, FEW_RANKS))
    through = 2 * sum(send.bytes for send in few.sends) / few.ranks
    return through * (1 - 1 / collective.ranks) / (1 - 1 / few.ranks)


def _hosts(collective: Collective, network: Network) -> int:
    """Number of hosts of the collective's ranks."""
    return network.layout.host_of(collective.ranks - 1) + 1


def _measured(collective: Collective, network: Network) -> float | None:
    """Return seconds from measured constants of this number of devices and hosts, or of NCCL's neighbouring numbers."""
    if collective.piece_MB not in (None, PIECE_MB):
        return None
    operation = collective.operation if collective.piece_MB is None else RING
    hosts = _hosts(collective, network)
    entry = network.cluster.measured_for(operation, collective.backend, collective.ranks, hosts, collective.bytes)
    if entry is None and collective.backend == "nccl":
        entry = _interpolated(operation, collective, hosts, network.cluster)
    if entry is None:
        return None
    carried = link_bytes(collective.operation, collective.ranks, collective.bytes)
    return entry.latency_us * 1e-6 + carried / (entry.GBps * 1e9)


ALIKE = 1.5
"""Largest ratio of the bandwidths of two numbers of devices between which other numbers are interpolated."""


def _interpolated(operation: str, collective: Collective, hosts: int, cluster: Cluster) -> Measured | None:
    """Constants between those of a smaller and a larger number of devices, if these are alike, as on NVSwitch. On other
    links the numbers of devices use different rings."""
    measured = [entry for entry in cluster.measured if entry.operation == operation and entry.hosts == hosts]
    counts = {entry.devices for entry in measured if entry.backend == collective.backend}
    below = max((count for count in counts if count < collective.ranks), default=None)
    above = min((count for count in counts if count > collective.ranks), default=None)
    if below is None or above is None:
        return None
    low, high = (
        cluster.measured_for(operation, collective.backend, count, hosts, collective.bytes) for count in (below, above)
    )
    if low is None or high is None or max(low.GBps, high.GBps) > ALIKE * min(low.GBps, high.GBps):
        return None
    part = (collective.ranks - below) / (above - below)
    return replace(
        low,
        devices=collective.ranks,
        GBps=low.GBps + part * (high.GBps - low.GBps),
        latency_us=low.latency_us + part * (high.latency_us - low.latency_us),
    )


def _send_by_send(collective: Collective, network: Network) -> float:
    sends = collective.sends
    traffic = Traffic(network)

    def place(position: int, ready: float) -> float:
        return traffic.carry(sends[position], ready)

    return max(simulate_operations([send.after for send in sends], place))


@dataclass(frozen=True)
class _Ring:
    """Costs of a ring of ranks in order."""

    seconds_per_byte: float
    """Seconds that the busiest channel takes for one byte on every edge."""
    latency_seconds: float
    """Mean latency of an edge."""
    slowest: Path
    """Slowest edge."""


def _ring(network: Network, ranks: int, closed: bool = True) -> _Ring:
    """Return the costs of a ring, or of a chain, which is not closed. One host represents all hosts with the same
    number of workers."""
    busy: dict[object, float] = {}
    latency, slowest = 0.0, Path(0.0, ())
    for source, target, count in _edges(network, ranks):
        if target < source and not closed and ranks > 1:
            continue
        path = network.path(source, target)
        for channel, seconds in path.channels:
            busy[channel] = busy.get(channel, 0.0) + seconds
        latency += count * path.latency_seconds
        slowest = max(slowest, path, key=lambda edge: (edge.seconds_per_byte, edge.latency_seconds))
    return _Ring(max(busy.values(), default=0.0), latency / ranks, slowest)


def _edges(network: Network, ranks: int) -> Iterator[tuple[int, int, int]]:
    """Edges of a ring as (source, target, number of edges that this one represents)."""
    layout = network.layout
    hosts = layout.host_of(ranks - 1) + 1
    if layout.hosts <= FEW_HOSTS:
        chosen = [(host, layout.per_host[host], 1) for host in range(hosts)]
    else:
        by_size: dict[int, tuple[int, int]] = {}
        for run in layout.runs:
            host, number = by_size.get(run.size, (run.host, 0))
            by_size[run.size] = host, number + max(0, min(run.hosts, hosts - run.host))
        chosen = [(host, size, number) for size, (host, number) in by_size.items() if number]
    for host, count, represented in chosen:
        first = layout.first_of(host)
        for rank in range(first, min(first + count, ranks)):
            yield rank, (rank + 1) % ranks, represented


def _by_formula(collective: Collective, network: Network) -> float:
    is_chain = collective.backend == "nccl" and collective.operation in ("broadcast", "reduce")
    ring = _ring(network, collective.ranks, closed=not is_chain)
    by_operation: dict[str, Callable[[], float]] = {
        "all_reduce": lambda: _all_reduce(collective, network, ring),
        "all_gather": lambda: _steps(collective, ring, collective.ranks - 1),
        "reduce_scatter": lambda: _steps(collective, ring, _rounds(collective) * (collective.ranks - 1)),
        "broadcast": lambda: _from_root(collective, ring),
        "reduce": lambda: _from_root(collective, ring),
        "gather": lambda: link_bytes("gather", collective.ranks, collective.bytes) * ring.slowest.seconds_per_byte,
        "scatter": lambda: link_bytes("scatter", collective.ranks, collective.bytes) * ring.slowest.seconds_per_byte,
    }
    return by_operation[collective.operation]()


def _rounds(collective: Collective) -> int:
    """Rounds through the ring of a reduce-scatter: two with gloo, where c10d implements it as an all-reduce."""
    return 2 if collective.backend == "gloo" else 1


def _steps(collective: Collective, ring: _Ring, steps: int) -> float:
    return steps * (ring.latency_seconds + collective.bytes / collective.ranks * ring.seconds_per_byte)


def _all_reduce(collective: Collective, network: Network, ring: _Ring) -> float:
    seconds = _steps(collective, ring, 2 * (collective.ranks - 1))
    hosts = _hosts(collective, network)
    if collective.backend != "nccl" or hosts == 1:
        return seconds
    # NCCL's trees have few hops over many hosts, and carry all bytes up and down.
    inside = max(network.layout.per_host) - 1
    hops = 2 * math.ceil(math.log2(hosts)) * ring.slowest.latency_seconds + 2 * inside * 3.4e-6
    return min(seconds, hops + 2 * collective.bytes * ring.seconds_per_byte)


def _from_root(collective: Collective, ring: _Ring) -> float:
    """Seconds of a broadcast or a reduce.

    gloo sends whole tensors along a tree. NCCL sends small pieces along a chain whose links work at the same time, so
    that another device adds only a latency (constant from 2 to 4 GTX 1080 Ti: E. Stevens 2020).
    """
    if collective.backend == "gloo":
        rounds = math.ceil(math.log2(collective.ranks))
        return rounds * (ring.slowest.latency_seconds + collective.bytes * ring.slowest.seconds_per_byte)
    return collective.ranks * ring.latency_seconds + collective.bytes * ring.seconds_per_byte
