"""Which host every rank is on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from scalewise.clusters.cluster import Cluster, Device
from scalewise.errors import UserError


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
        if self._alike:
            return rank // self.per_host[0]
        return next(host for host, end in enumerate(accumulate(self.per_host)) if rank < end)

    def first_of(self, host: int) -> int:
        return host * self.per_host[0] if self._alike else sum(self.per_host[:host])

    @cached_property
    def _alike(self) -> bool:
        return len(set(self.per_host)) == 1

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
