"""Network of a cluster: placement of ranks, paths between them, and transfer times."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Literal, NamedTuple

from scalewise.core.errors import UserError
from scalewise.hardware.cluster import Cluster, Device, Link
from scalewise.hardware.transfers import Send


class HostRun(NamedTuple):
    """Consecutive hosts with the same number of workers."""

    host: int
    """First host."""
    rank: int
    """First rank of that host."""
    hosts: int
    """Number of hosts."""
    size: int
    """Number of workers per host."""


@dataclass(frozen=True)
class Layout:
    """Placement of ranks on hosts: workers in order, then servers, which are distributed over the hosts in turn."""

    per_host: tuple[int, ...]
    """Number of workers on each host."""
    servers_apart: bool = False
    """Every server has its own host, after those of the workers."""

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
        run = self.runs[bisect_right(self.runs, rank, key=lambda run: run.rank) - 1]
        return run.host + (rank - run.rank) // run.size

    def first_of(self, host: int) -> int:
        run = self.runs[bisect_right(self.runs, host, key=lambda run: run.host) - 1]
        return run.rank + (host - run.host) * run.size

    @cached_property
    def runs(self) -> tuple[HostRun, ...]:
        """Runs of equal hosts; even thousands of hosts make only a few runs."""
        runs: list[HostRun] = []
        host = rank = 0
        for size, equal in groupby(self.per_host):
            hosts = len(list(equal))
            runs.append(HostRun(host, rank, hosts, size))
            host, rank = host + hosts, rank + hosts * size
        return tuple(runs)

    def alike_hosts(self, first: int, end: int, apart: int) -> Iterator[tuple[int, int, int]]:
        """Group the hosts of ranks `first` to `end - 1` as (host, its number of these ranks, number of such hosts).

        Host `apart` is a group of its own.
        """
        start, stop = self.host_of(first), self.host_of(end - 1) + 1
        groups: dict[tuple[int, bool], tuple[int, int]] = {}
        for run in self.runs:
            low, high = max(run.host, start), min(run.host + run.hosts, stop)
            if low >= high:
                continue
            special = {host for host in (low, high - 1, apart) if low <= host < high}  # others have all their ranks
            examined = [(host, 1) for host in special]
            if rest := high - low - len(special):
                examined.append((next(host for host in range(low, high) if host not in special), rest))
            for host, count in sorted(examined):
                rank = self.first_of(host)
                ranks = min(end, rank + run.size) - max(first, rank)
                representative, number = groups.get((ranks, host == apart), (host, 0))
                groups[ranks, host == apart] = representative, number + count
        for (ranks, _), (host, number) in groups.items():
            yield host, ranks, number

    def place_of(self, rank: int) -> int | None:
        """Index of a rank's device on its host; None for a server, which uses host memory."""
        return None if rank >= self.workers else rank - self.first_of(self.host_of(rank))


def packed(cluster: Cluster, devices: int) -> Layout:
    """Layout that fills one host after the other."""
    if devices > cluster.size:
        raise UserError(f"{cluster.name} has {cluster.size} devices, not {devices}")
    full, rest = divmod(devices, cluster.devices_per_host)
    return Layout((cluster.devices_per_host,) * full + ((rest,) if rest else ()), cluster.servers_apart)


def in_use(cluster: Cluster, devices: int) -> list[tuple[Device, int]]:
    """Kinds of devices in use, with their numbers, if one host after the other is filled."""
    full, rest = divmod(devices, cluster.devices_per_host)
    kinds: list[tuple[Device, int]] = []
    for device in cluster.devices:
        partial = min(device.count, rest)
        rest -= partial
        if count := full * device.count + partial:
            kinds.append((device, count))
    return kinds


GIGA = 1e9
SEND = "send"
HOST_COPIES = "copies through host memory"
HOST_MEMORY_GBps = 38.4
"""Bandwidth of host memory in each direction: half of a CPU socket with four channels of DDR4-2400."""
SOCKET_GBps = 2.0
"""Bandwidth in each direction of the sockets of one process on a GPU host; an assumption, used if not measured."""


Way = Literal["out", "in", "both"]
_Key = tuple[int, int, bool, int, bool]
"""(source, target, whether it uses sockets, size class, whether it is no part of a collective)."""


class Channel(NamedTuple):
    """A resource that carries one message at a time, such as one direction of a link."""

    owner: Literal["rank", "host", "pair"]
    number: int | tuple[int, int]
    way: Way
    kind: str


@dataclass(frozen=True)
class Path:
    """Route of a transfer."""

    latency_seconds: float
    channels: tuple[tuple[Channel, float], ...]
    """Channels that a transfer occupies, with the seconds per byte of each."""

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
        """Path between two ranks.

        Args:
            sockets: gloo carries the message, on a GPU host through a process of the host.
            bytes: size of the message, relevant if messages of several sizes were measured.
            alone: the message is no part of a collective, which would use the PCIe lanes of all devices.
        """
        key = source, target, sockets, bisect_right(self._steps, bytes), alone
        if key not in self._paths:
            self._paths[key] = self._through_ends(self._find(source, target, sockets, bytes), key)
        return self._paths[key]

    def _through_ends(self, path: Path, key: _Key) -> Path:
        """Add the channels at the ends of a path: the PCIe lanes of a GPU, and the sockets of a server process."""
        memory = self.cluster.link("host-device")
        if memory is None or self.cluster.backend == "gloo":
            return path
        source, target, sockets, _, alone = key
        leaves = alone and self.layout.host_of(source) != self.layout.host_of(target)
        channels = dict(path.channels)
        ends: tuple[tuple[int, Way], ...] = ((source, "out"), (target, "in"))
        for rank, way in ends:
            is_server = self.layout.place_of(rank) is None
            if sockets and is_server:
                channels[Channel("rank", rank, way, memory.kind)] = 1 / (SOCKET_GBps * GIGA)
            elif leaves and not is_server and not memory.shared:
                channels[Channel("rank", rank, way, memory.kind)] = 1 / (memory.GBps * GIGA)
            if leaves and not is_server and (network := self.cluster.link("hosts")) and (network.ports or 1) > 1:
                channels[Channel("rank", rank, way, network.kind)] = 1 / (network.GBps * GIGA)
        return replace(path, channels=tuple(channels.items()))

    def _find(self, source: int, target: int, sockets: bool, bytes: int) -> Path:
        host, other_host = self.layout.host_of(source), self.layout.host_of(target)
        if host != other_host:
            link = self._as_measured(self._need("hosts"), 2, bytes)
            if link.pairs:
                return _between_hosts(link, host, other_host)
            path = self._over_ports(link, host, other_host) if link.shared else _between_ranks(link, source, target)
            return _through_memory(path, link, host, other_host)
        place, other = self.layout.place_of(source), self.layout.place_of(target)
        memory = self.cluster.link("host-device")
        by_sockets = sockets and self.cluster.backend == "gloo"  # measured between devices, like these
        if memory and not by_sockets and (place is None or other is None):
            return self._to_memory(memory, source, target)
        link = self._as_measured(self.cluster.link_between(place or 0, other or 0) or self._need("devices"), 1, bytes)
        if link.shared:
            return _path(link, Channel("host", host, "both", link.kind))
        return _between_ranks(link, source, target, host)

    def _over_ports(self, link: Link, host: int, other: int) -> Path:
        """Path between two hosts whose devices share the ports of their host."""
        ends = Channel("host", host, "out", link.kind), Channel("host", other, "in", link.kind)
        ports = (self._ports_in_use(link, host), self._ports_in_use(link, other))
        channels = tuple((end, 1 / (link.GBps * used * GIGA)) for end, used in zip(ends, ports, strict=True))
        return Path(link.latency_us * 1e-6, channels)

    def _ports_in_use(self, link: Link, host: int) -> int:
        """Ports of a host close to its devices in use; all of them for servers on a host of their own."""
        ports = link.ports or 1
        if host >= self.layout.hosts:
            return ports
        return max(1, ports * self.layout.per_host[host] // self.cluster.devices_per_host)

    def _to_memory(self, link: Link, source: int, target: int) -> Path:
        """Path between a device and host memory. Devices have their own lanes unless the link is shared."""
        if link.shared:
            return _path(link, Channel("host", self.layout.host_of(source), "both", link.kind))
        speeds = [link.GBps if self.layout.place_of(end) is not None else HOST_MEMORY_GBps for end in (source, target)]
        ends = (Channel("rank", source, "out", link.kind), Channel("rank", target, "in", link.kind))
        channels = tuple((end, 1 / (GBps * GIGA)) for end, GBps in zip(ends, speeds, strict=True))
        return Path(link.latency_us * 1e-6, channels)

    def _as_measured(self, link: Link, hosts: int, bytes: int) -> Link:
        """Link with the measured constants of a send of this size, if there are any."""
        entry = self.cluster.measured_for(SEND, self.cluster.backend, 2, hosts, bytes)
        return replace(link, GBps=entry.GBps, latency_us=entry.latency_us) if entry else link

    def among(self, ranks: int, stride: int = 1, groups: int = 1) -> Network:
        """Network for one of several groups of ranks that communicate at the same time and share bandwidth equally.

        A group consists of `ranks` consecutive ranks, or of every `stride`-th rank.
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
        """Cluster whose shared links have the bandwidth that remains for one of `at_once` users."""
        cluster = self.cluster
        shared = {link.between for link in cluster.links if link.shared or link.pairs}
        return replace(
            cluster,
            links=tuple(
                replace(
                    link,
                    GBps=link.GBps / at_once if link.shared or link.pairs else link.GBps,
                    host_GBps=link.host_GBps / at_once if link.host_GBps else None,
                )
                for link in cluster.links
            ),
            measured=tuple(
                replace(entry, GBps=entry.GBps / at_once)
                if ("hosts" if entry.hosts > 1 else "devices") in shared
                else entry
                for entry in cluster.measured
            ),
        )

    def _need(self, between: str) -> Link:
        link = self.cluster.link(between)  # type: ignore[arg-type]
        if link is None:
            raise UserError(f'{self.cluster.name} has no [[link]] with between = "{between}"')
        return link


def _between_ranks(link: Link, source: int, target: int, host: int | None = None) -> Path:
    """Path over a link of its own lanes. `host`: the host whose memory the bytes may pass through."""
    path = _path(link, Channel("rank", source, "out", link.kind), Channel("rank", target, "in", link.kind))
    channels = path.channels
    if link.both_ways_GBps is not None:
        together = 1 / (link.both_ways_GBps * GIGA)
        channels += tuple((Channel("rank", rank, "both", link.kind), together) for rank in (source, target))
    if link.host_GBps is not None and host is not None:
        channels += ((Channel("host", host, "both", HOST_COPIES), 1 / (link.host_GBps * GIGA)),)
    return Path(path.latency_seconds, channels)


def _through_memory(path: Path, link: Link, host: int, other: int) -> Path:
    """Path whose bytes pass through the memory of both hosts, if that is limited."""
    if link.host_GBps is None:
        return path
    seconds = 1 / (link.host_GBps * GIGA)
    copies = tuple((Channel("host", one, "both", HOST_COPIES), seconds) for one in (host, other))
    return replace(path, channels=path.channels + copies)


def _between_hosts(link: Link, host: int, other: int) -> Path:
    """Path between two hosts whose two directions share the bandwidth, or `both_ways_GBps` if that is given."""
    pair = Channel("pair", (min(host, other), max(host, other)), "both", link.kind)
    if link.both_ways_GBps is None:
        return _path(link, pair)
    one_way = _path(link, Channel("host", host, "out", link.kind), Channel("host", other, "in", link.kind))
    return replace(one_way, channels=(*one_way.channels, (pair, 1 / (link.both_ways_GBps * GIGA))))


def _path(link: Link, *channels: Channel) -> Path:
    return Path(link.latency_us * 1e-6, tuple((channel, 1 / (link.GBps * GIGA)) for channel in channels))


class Traffic:
    """Occupation of channels by transfers. Every channel serves its own queue in the order of arrival."""

    def __init__(self, network: Network, alone: bool = False) -> None:
        """`alone`: the transfers are no part of a collective."""
        self.network = network
        self.alone = alone
        self.free: dict[Channel, float] = defaultdict(float)

    def path(self, send: Send) -> Path:
        by_sockets = send.reply_bytes > 0  # only gloo replies to messages
        return self.network.path(send.source, send.target, by_sockets, send.bytes, self.alone)

    def carry(self, send: Send, ready: float) -> float:
        """Time at which the last byte of a send that starts at `ready` arrives."""
        path = self.path(send)
        end = ready
        for channel, seconds_per_byte in path.channels:
            self.free[channel] = max(self.free[channel], ready) + send.bytes * seconds_per_byte
            end = max(end, self.free[channel])
        return end + path.latency_seconds

    def carry_alike(self, send: Send, count: int, ready: float) -> float:
        """Time at which the last of `count` sends arrives, whose lower ends are consecutive ranks.

        One host of each kind represents the others.
        """
        end = ready
        for host, first, ranks, hosts in self._hosts(send, count):
            one = replace(send, source=first) if send.source < send.target else replace(send, target=first)
            path = self.path(one)
            for channel, seconds_per_byte in path.channels:
                # Channels of the represented ranks or hosts carry their own bytes, those of the other end carry all.
                times = ranks * hosts
                if (channel.owner, channel.number) == ("rank", first):
                    times = 1
                elif (channel.owner, channel.number) == ("host", host):
                    times = ranks
                self.free[channel] = max(self.free[channel], ready) + times * send.bytes * seconds_per_byte
                end = max(end, self.free[channel] + path.latency_seconds)
        return end

    def _hosts(self, send: Send, count: int) -> Iterator[tuple[int, int, int, int]]:
        """Hosts at the lower end of `count` sends: (host, its first rank, number of ranks, number of such hosts)."""
        layout = self.network.layout
        first, other_host = min(send.source, send.target), layout.host_of(max(send.source, send.target))
        for host, ranks, hosts in layout.alike_hosts(first, first + count, other_host):
            yield host, max(first, layout.first_of(host)), ranks, hosts
