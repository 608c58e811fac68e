"""Seconds of one collective on a network: as measured, send by send, or by formula where ranks are many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from scalewise.clusters.cluster import RING
from scalewise.collectives.collective import Collective
from scalewise.collectives.ring import PIECE_MB
from scalewise.simulation.network import Network, Path, Traffic
from scalewise.simulation.queues import run

SEND_BY_SEND = 4
"""Ranks up to which every send is followed."""
FEW_HOSTS = 4
"""Hosts up to which each is looked at: two of them share what lies between."""
FEW_RANKS = 16
"""Ranks up to which the bytes of every send are added up."""


def collective_seconds(collective: Collective, network: Network) -> float:
    """From the moment all ranks have come to it."""
    launch = network.cluster.devices[0].launch_us * 1e-6
    measured = _measured(collective, network)
    if measured is not None:
        return measured
    pipelined = collective.backend == "nccl" and collective.operation in ("broadcast", "reduce")
    if collective.ranks <= SEND_BY_SEND and not pipelined and collective.bytes:
        return launch + _send_by_send(collective, network)
    return launch + _by_formula(collective, network)


def link_bytes(operation: str, ranks: int, bytes: int) -> float:
    """What the busiest link carries, each way, on a ring or a chain."""
    if operation in ("broadcast", "reduce", "send"):
        return float(bytes)
    return bytes * (2 if operation == "all_reduce" else 1) * (ranks - 1) / ranks


def bytes_through_rank(collective: Collective) -> float:
    """Sent plus received, in the mean: of N ranks each passes on all parts but one, so a few tell what many would."""
    few = replace(collective, ranks=min(collective.ranks, FEW_RANKS))
    through = 2 * sum(send.bytes for send in few.sends) / few.ranks
    return through * (1 - 1 / collective.ranks) / (1 - 1 / few.ranks)


def _hosts(collective: Collective, network: Network) -> int:
    """That its ranks are on."""
    return network.layout.host_of(collective.ranks - 1) + 1


def _measured(collective: Collective, network: Network) -> float | None:
    """Only for just so many devices on so many hosts: elsewhere the constants mean something else."""
    if collective.piece_MB not in (None, PIECE_MB):
        return None
    operation = collective.operation if collective.piece_MB is None else RING
    entry = network.cluster.measured_for(
        operation, collective.backend, collective.ranks, _hosts(collective, network), collective.bytes
    )
    if entry is None:
        return None
    carried = link_bytes(collective.operation, collective.ranks, collective.bytes)
    return entry.latency_us * 1e-6 + carried / (entry.GBps * 1e9)


def _send_by_send(collective: Collective, network: Network) -> float:
    sends = collective.sends
    traffic = Traffic(network)

    def place(position: int, ready: float) -> float:
        return traffic.carry(sends[position], ready)

    return max(run([send.after for send in sends], place))


@dataclass(frozen=True)
class _Ring:
    """Neighbours in order of rank: what one byte on every edge costs the busiest channel, and delays all round."""

    seconds_per_byte: float
    latency_seconds: float
    """The mean of an edge."""
    slowest: Path


def _ring(network: Network, ranks: int) -> _Ring:
    """Hosts with as many workers look alike, so one of each is looked at."""
    busy: dict[object, float] = {}
    latency, slowest = 0.0, Path(0.0, ())
    for source, target, alike in _edges(network, ranks):
        path = network.path(source, target)
        for channel, seconds in path.channels:
            busy[channel] = busy.get(channel, 0.0) + seconds
        latency += alike * path.latency_seconds
        slowest = max(slowest, path, key=lambda each: (each.seconds_per_byte, each.latency_seconds))
    return _Ring(max(busy.values(), default=0.0), latency / ranks, slowest)


def _edges(network: Network, ranks: int) -> Iterator[tuple[int, int, int]]:
    """(from, to, how many like it)."""
    layout = network.layout
    taking_part = layout.host_of(ranks - 1) + 1
    if layout.hosts <= FEW_HOSTS:
        chosen = [(host, layout.per_host[host], 1) for host in range(taking_part)]
    else:
        by_size: dict[int, tuple[int, int]] = {}
        for run in layout.runs:
            host, number = by_size.get(run.size, (run.host, 0))
            by_size[run.size] = host, number + max(0, min(run.hosts, taking_part - run.host))
        chosen = [(host, size, number) for size, (host, number) in by_size.items() if number]
    for host, count, alike in chosen:
        first = layout.first_of(host)
        for rank in range(first, min(first + count, ranks)):
            yield rank, (rank + 1) % ranks, alike


def _by_formula(collective: Collective, network: Network) -> float:
    ring = _ring(network, collective.ranks)
    by_operation: dict[str, Callable[[], float]] = {
        "all_reduce": lambda: _all_reduce(collective, network, ring),
        "all_gather": lambda: _steps(collective, ring, collective.ranks - 1),
        "reduce_scatter": lambda: _steps(collective, ring, _turns(collective) * (collective.ranks - 1)),
        "broadcast": lambda: _from_root(collective, ring),
        "reduce": lambda: _from_root(collective, ring),
        "gather": lambda: link_bytes("gather", collective.ranks, collective.bytes) * ring.slowest.seconds_per_byte,
        "scatter": lambda: link_bytes("scatter", collective.ranks, collective.bytes) * ring.slowest.seconds_per_byte,
    }
    return by_operation[collective.operation]()


def _turns(collective: Collective) -> int:
    """c10d's reduce-scatter over gloo is an all-reduce."""
    return 2 if collective.backend == "gloo" else 1


def _steps(collective: Collective, ring: _Ring, steps: int) -> float:
    return steps * (ring.latency_seconds + collective.bytes / collective.ranks * ring.seconds_per_byte)


def _all_reduce(collective: Collective, network: Network, ring: _Ring) -> float:
    seconds = _steps(collective, ring, 2 * (collective.ranks - 1))
    hosts = _hosts(collective, network)
    if collective.backend != "nccl" or hosts == 1:
        return seconds
    # NCCL's trees: few hops over many hosts; all bytes up and down.
    inside = max(network.layout.per_host) - 1
    hops = 2 * math.ceil(math.log2(hosts)) * ring.slowest.latency_seconds + 2 * inside * 3.4e-6
    return min(seconds, hops + 2 * collective.bytes * ring.seconds_per_byte)


def _from_root(collective: Collective, ring: _Ring) -> float:
    """On gloo a tree of whole tensors; on NCCL a chain whose links all work at once, in pieces so fine that another
    device costs a delay only (flat from 2 to 4 GTX 1080 Ti: E. Stevens 2020)."""
    if collective.backend == "gloo":
        rounds = math.ceil(math.log2(collective.ranks))
        return rounds * (ring.slowest.latency_seconds + collective.bytes * ring.slowest.seconds_per_byte)
    return collective.ranks * ring.latency_seconds + collective.bytes * ring.seconds_per_byte
