"""What a transfer crosses on a cluster, and for how long it keeps each part of it busy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

from scalewise.clusters.cluster import Cluster, Link
from scalewise.errors import UserError
from scalewise.simulation.layout import Layout

GIGA = 1e9
Channel = Hashable


@dataclass(frozen=True)
class Path:
    """The channels that a transfer occupies, each for its bytes times these seconds, and the delay on top."""

    latency_seconds: float
    channels: tuple[tuple[Channel, float], ...]

    @property
    def seconds_per_byte(self) -> float:
        return max((seconds for _, seconds in self.channels), default=0.0)


class Network:
    """Paths between the ranks of one layout on one cluster."""

    def __init__(self, cluster: Cluster, layout: Layout) -> None:
        self.cluster = cluster
        self.layout = layout
        self._paths: dict[tuple[int, int], Path] = {}

    def path(self, source: int, target: int) -> Path:
        if (source, target) not in self._paths:
            self._paths[source, target] = self._find(source, target)
        return self._paths[source, target]

    def _find(self, source: int, target: int) -> Path:
        here, there = self.layout.host_of(source), self.layout.host_of(target)
        if here != there:
            link = self._need("hosts")
            if link.shared:
                return _path(link, ("out", here), ("in", there))
            return _path(link, ("out", source), ("in", target))
        place, other = self.layout.place_of(source), self.layout.place_of(target)
        if place is None or other is None:
            # A server's own end is as wide as the link, so that all workers of a host share it.
            link = self.cluster.link("host-device") or self._need("devices")
        else:
            link = self.cluster.link_between(place, other) or self._need("devices")
        if link.shared:
            return _path(link, ("host", here))
        return _path(link, ("out", source, link.kind), ("in", target, link.kind))

    def _need(self, between: str) -> Link:
        link = self.cluster.link(between)  # type: ignore[arg-type]
        if link is None:
            raise UserError(f'{self.cluster.name} has no [[link]] with between = "{between}"')
        return link


def _path(link: Link, *channels: Channel) -> Path:
    return Path(link.latency_us * 1e-6, tuple((channel, 1 / (link.GBps * GIGA)) for channel in channels))


class Traffic:
    """Channels in use: what comes first is served first, and each channel works on its own queue."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.free: dict[Channel, float] = defaultdict(float)

    def carry(self, source: int, target: int, bytes: int, ready: float) -> float:
        """When the last byte arrives."""
        path = self.network.path(source, target)
        end = ready
        for channel, seconds_per_byte in path.channels:
            self.free[channel] = max(self.free[channel], ready) + bytes * seconds_per_byte
            end = max(end, self.free[channel])
        return end + path.latency_seconds
