"""What a transfer crosses on a cluster, and for how long it keeps each part of it busy."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from scalewise.clusters.cluster import Cluster, Link
from scalewise.collectives.send import Send
from scalewise.errors import UserError
from scalewise.simulation.layout import Layout

GIGA = 1e9
SEND = "send"
HOST_MEMORY_GBps = 38.4
"""What the memory of a host gives and takes, each way: half of a socket with four channels of DDR4-2400."""
SOCKET_GBps = 2.0
"""What one process on a GPU host moves through sockets, each way; assumed, where no link was measured with them."""


Way = Literal["out", "in", "both"]
_Key = tuple[int, int, bool, int, bool]
"""Source, target, whether by sockets, the class of its size, whether alone."""


class Channel(NamedTuple):
    """Something that carries one thing after the other."""

    owner: Literal["rank", "host", "pair"]
    number: int | tuple[int, int]
    way: Way
    kind: str


@dataclass(frozen=True)
class Path:
    """The channels that a transfer occupies, each for its bytes times these seconds, and the delay on top."""

    latency_seconds: float
    channels: tuple[tuple[Channel, float], ...]

    @cached_property
    def seconds_per_byte(self) -> float:
        return max((seconds for _, seconds in self.channels), default=0.0)


class Network:
    """Paths between the ranks of one layout on one cluster."""

    def __init__(self, cluster: Cluster, layout: Layout) -> None:
        self.cluster = cluster
        self.layout = layout
        self._paths: dict[_Key, Path] = {}
        self._steps = sorted(
            {entry.from_bytes for entry in cluster.measured if entry.operation == SEND and entry.from_bytes}
        )

    def path(self, source: int, target: int, sockets: bool = False, bytes: int = 0, alone: bool = False) -> Path:
        """`sockets`: by gloo, which on a GPU host means through a process of the host. `bytes` matter where sends of
        several sizes were measured. `alone`: no part of a collective, which uses the lanes of all devices."""
        key = source, target, sockets, bisect_right(self._steps, bytes), alone
        if key not in self._paths:
            self._paths[key] = self._through_ends(self._find(source, target, sockets, bytes), key)
        return self._paths[key]

    def _through_ends(self, path: Path, key: _Key) -> Path:
        """With what belongs to a rank, from whatever host the others are: a GPU has its own lanes to the network, and
        its server one process that moves all through sockets."""
        memory = self.cluster.link("host-device")
        if memory is None or self.cluster.backend == "gloo":
            return path
        source, target, sockets, _, alone = key
        leaves = alone and self.layout.host_of(source) != self.layout.host_of(target)
        channels = dict(path.channels)
        ends: tuple[tuple[int, Way], ...] = ((source, "out"), (target, "in"))
        for rank, way in ends:
            serves = self.layout.place_of(rank) is None
            if sockets and serves:
                channels[Channel("rank", rank, way, memory.kind)] = 1 / (SOCKET_GBps * GIGA)
            elif leaves and not serves and not memory.shared:
                channels[Channel("rank", rank, way, memory.kind)] = 1 / (memory.GBps * GIGA)
        return replace(path, channels=tuple(channels.items()))

    def _find(self, source: int, target: int, sockets: bool, bytes: int) -> Path:
        here, there = self.layout.host_of(source), self.layout.host_of(target)
        if here != there:
            link = self._as_measured(self._need("hosts"), 2, bytes)
            if link.pairs:
                return _path(link, Channel("pair", (min(here, there), max(here, there)), "both", link.kind))
            if link.shared:
                return _path(link, Channel("host", here, "out", link.kind), Channel("host", there, "in", link.kind))
            return _between_ranks(link, source, target)
        place, other = self.layout.place_of(source), self.layout.place_of(target)
        memory = self.cluster.link("host-device")
        by_sockets = sockets and self.cluster.backend == "gloo"  # as between devices, which is what was measured
        if memory and not by_sockets and (place is None or other is None):
            return self._to_memory(memory, source, target)
        link = self._as_measured(self.cluster.link_between(place or 0, other or 0) or self._need("devices"), 1, bytes)
        if link.shared:
            return _path(link, Channel("host", here, "both", link.kind))
        return _between_ranks(link, source, target)

    def _to_memory(self, link: Link, source: int, target: int) -> Path:
        """Every device has lanes of its own; the memory is there for all."""
        if link.shared:
            return _path(link, Channel("host", self.layout.host_of(source), "both", link.kind))
        speeds = [link.GBps if self.layout.place_of(end) is not None else HOST_MEMORY_GBps for end in (source, target)]
        ends = (Channel("rank", source, "out", link.kind), Channel("rank", target, "in", link.kind))
        channels = tuple((end, 1 / (GBps * GIGA)) for end, GBps in zip(ends, speeds, strict=True))
        return Path(link.latency_us * 1e-6, channels)

    def _as_measured(self, link: Link, hosts: int, bytes: int) -> Link:
        """With the constants of a send of this size, if there are any."""
        entry = self.cluster.measured_for(SEND, self.cluster.backend, 2, hosts, bytes)
        return replace(link, GBps=entry.GBps, latency_us=entry.latency_us) if entry else link

    def among(self, ranks: int, stride: int = 1, groups: int = 1) -> Network:
        """As one of several groups of ranks finds it that all do the same at once: what they share is shared out.

        Groups are of so many ranks in a row, or of every `stride`-th rank.
        """
        on_host = max(self.layout.per_host)
        if stride == 1:
            at_once = min(groups, max(1, on_host // ranks))
            return self if at_once == 1 else Network(self._shared_out(at_once), self.layout)
        per_host = max(1, on_host // stride)
        hosts = -(-self.layout.workers // stride // per_host)
        cluster = self._shared_out(min(stride, on_host))
        smaller = replace(
            cluster,
            hosts=hosts,
            devices_per_host=per_host,
            devices=(replace(cluster.devices[0], count=per_host),),
            links=tuple(link for link in cluster.links if link.group is None or link.group > stride),
        )
        return Network(smaller, Layout((per_host,) * hosts))

    def _shared_out(self, at_once: int) -> Cluster:
        """To each of so many its part of what carries one thing after the other."""
        cluster = self.cluster
        shared = {link.between for link in cluster.links if link.shared or link.pairs}
        return replace(
            cluster,
            links=tuple(
                replace(link, GBps=link.GBps / at_once) if link.shared or link.pairs else link for link in cluster.links
            ),
            measured=tuple(
                replace(each, GBps=each.GBps / at_once)
                if ("hosts" if each.hosts > 1 else "devices") in shared
                else each
                for each in cluster.measured
            ),
        )

    def _need(self, between: str) -> Link:
        link = self.cluster.link(between)  # type: ignore[arg-type]
        if link is None:
            raise UserError(f'{self.cluster.name} has no [[link]] with between = "{between}"')
        return link


def _between_ranks(link: Link, source: int, target: int) -> Path:
    path = _path(link, Channel("rank", source, "out", link.kind), Channel("rank", target, "in", link.kind))
    if link.both_ways_GBps is None:
        return path
    together = 1 / (link.both_ways_GBps * GIGA)
    ends = tuple((Channel("rank", rank, "both", link.kind), together) for rank in (source, target))
    return Path(path.latency_seconds, path.channels + ends)


def _path(link: Link, *channels: Channel) -> Path:
    return Path(link.latency_us * 1e-6, tuple((channel, 1 / (link.GBps * GIGA)) for channel in channels))


class Traffic:
    """Channels in use: what comes first is served first, and each channel works on its own queue."""

    def __init__(self, network: Network, alone: bool = False) -> None:
        """`alone`: what is sent is no part of a collective."""
        self.network = network
        self.alone = alone
        self.free: dict[Channel, float] = defaultdict(float)

    def path(self, send: Send) -> Path:
        """Only gloo answers a message with a notice of its own."""
        by_sockets = send.reply_bytes > 0
        return self.network.path(send.source, send.target, by_sockets, send.bytes, self.alone)

    def carry(self, send: Send, ready: float) -> float:
        """When the last byte arrives."""
        path = self.path(send)
        end = ready
        for channel, seconds_per_byte in path.channels:
            self.free[channel] = max(self.free[channel], ready) + send.bytes * seconds_per_byte
            end = max(end, self.free[channel])
        return end + path.latency_seconds

    def carry_alike(self, send: Send, count: int, ready: float) -> float:
        """The same for so many whose lower ends are ranks in a row: one of each kind of host stands for its others."""
        end = ready
        for host, first, here, alike in self._hosts(send, count):
            one = replace(send, source=first) if send.source < send.target else replace(send, target=first)
            path = self.path(one)
            for channel, seconds_per_byte in path.channels:
                # What belongs to a rank or a host carries its own bytes, the other end carries everybody's.
                times = here * alike
                if (channel.owner, channel.number) == ("rank", first):
                    times = 1
                elif (channel.owner, channel.number) == ("host", host):
                    times = here
                self.free[channel] = max(self.free[channel], ready) + times * send.bytes * seconds_per_byte
                end = max(end, self.free[channel] + path.latency_seconds)
        return end

    def _hosts(self, send: Send, count: int) -> Iterator[tuple[int, int, int, int]]:
        """(host, its first rank, how many of its ranks, how many hosts like it) of alike sends."""
        layout = self.network.layout
        first, inside = min(send.source, send.target), layout.host_of(max(send.source, send.target))
        for host, here, alike in layout.alike_hosts(first, first + count, inside):
            yield host, max(first, layout.first_of(host)), here, alike
