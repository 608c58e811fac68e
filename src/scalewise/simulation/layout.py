"""Which host every rank is on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from scalewise.clusters.cluster import Cluster, Device
from scalewise.errors import UserError


class Run(NamedTuple):
    """Hosts in a row with as many workers each."""

    host: int
    """The first, and its first rank."""
    rank: int
    hosts: int
    size: int


@dataclass(frozen=True)
class Layout:
    """Workers per host, in order of rank; whatever ranks come after them are servers, dealt out over the hosts."""

    per_host: tuple[int, ...]
    servers_apart: bool = False
    """Servers have hosts of their own, after those of the workers."""

    @cached_property
    def workers(self) -> int:
        return sum(self.per_host)

    @property
    def hosts(self) -> int:
        return len(self.per_host)

    def host_of(self, rank: int) -> int:
        if rank >= self.workers:
            server = rank - self.workers
            return self.hosts + server if self.servers_apart else server % self.hosts
        run = self.runs[bisect_right(self.runs, rank, key=lambda each: each.rank) - 1]
        return run.host + (rank - run.rank) // run.size

    def first_of(self, host: int) -> int:
        run = self.runs[bisect_right(self.runs, host, key=lambda each: each.host) - 1]
        return run.rank + (host - run.host) * run.size

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """However many hosts there are, most are alike."""
        found: list[Run] = []
        host = rank = 0
        for size, alike in groupby(self.per_host):
            hosts = len(list(alike))
            found.append(Run(host, rank, hosts, size))
            host, rank = host + hosts, rank + hosts * size
        return tuple(found)

    def alike_hosts(self, first: int, end: int, apart: int) -> Iterator[tuple[int, int, int]]:
        """(host, how many of its ranks, how many hosts like it) of ranks in a row; `apart` is like no other."""
        start, stop = self.host_of(first), self.host_of(end - 1) + 1
        seen: dict[tuple[int, bool], tuple[int, int]] = {}
        for run in self.runs:
            low, high = max(run.host, start), min(run.host + run.hosts, stop)
            if low >= high:
                continue
            named = {host for host in (low, high - 1, apart) if low <= host < high}  # the rest have all their ranks
            looked_at = [(host, 1) for host in named]
            if rest := high - low - len(named):
                looked_at.append((next(host for host in range(low, high) if host not in named), rest))
            for host, count in sorted(looked_at):
                rank = self.first_of(host)
                here = min(end, rank + run.size) - max(first, rank)
                known, number = seen.get((here, host == apart), (host, 0))
                seen[here, host == apart] = known, number + count
        for (here, _), (host, number) in seen.items():
            yield host, here, number

    def place_of(self, rank: int) -> int | None:
        """Among its host's devices; None for a server, which works in the host's memory."""
        return None if rank >= self.workers else rank - self.first_of(self.host_of(rank))


def packed(cluster: Cluster, devices: int) -> Layout:
    """One host after the other is filled."""
    if devices > cluster.size:
        raise UserError(f"{cluster.name} has {cluster.size} devices, not {devices}")
    full, rest = divmod(devices, cluster.devices_per_host)
    return Layout((cluster.devices_per_host,) * full + ((rest,) if rest else ()), cluster.servers_apart)


def in_use(cluster: Cluster, devices: int) -> list[tuple[Device, int]]:
    """Which kinds, and how many of each, where one host after the other is filled."""
    full, rest = divmod(devices, cluster.devices_per_host)
    found: list[tuple[Device, int]] = []
    for device in cluster.devices:
        taken = min(device.count, rest)
        rest -= taken
        if count := full * device.count + taken:
            found.append((device, count))
    return found
