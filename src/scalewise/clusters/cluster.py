"""What training runs on: devices in hosts, the links between them, what it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Between = Literal["devices", "hosts", "host-device"]
RING = "ring"
"""The operation's name under which our own ring all-reduce is measured."""


HOST_UPDATE_GBps = 10.0


@dataclass(frozen=True)
class Device:
    """One kind of device, and how many of it every host has."""

    name: str
    count: int
    memory_GB: float
    peak_TFLOPS: float
    """Single precision, without tensor cores."""
    memory_GBps: float
    launch_us: float
    """From asking for a piece of work to its start."""
    copy_GBps: float | None = None
    """How fast the device itself moves what it sends and receives, where no copy engine does it: CPU ranks."""
    beside_compute: float = 1.0
    """How many times as long a multiplication takes while all devices of the host compute; 1: each has its own."""
    beside_memory: float = 1.0
    """The same of streaming through memory, as an update does."""
    host_memory_GBps: float | None = None
    """Of a GPU's process through the host's memory while all do so, as updates there do. None: not measured."""


@dataclass(frozen=True)
class Link:
    """What joins devices of a host, hosts, or a device and its host's memory."""

    between: Between
    kind: str
    GBps: float
    """Of one path, each way: what arrives, not what the port could do."""
    latency_us: float
    shared: bool = False
    """All traffic of a host crosses one channel."""
    group: int | None = None
    """Devices are joined by so many, in order: 2 for bridges over pairs. None: all of a host."""
    pairs: bool = False
    """Between hosts: what two of them send each other, either way, shares one flow of this bandwidth."""
    both_ways_GBps: float | None = None
    """Of what a device sends and receives at once, together. None: each way has its own."""
    by_device: bool = False
    """The device itself makes the copies, and computes nothing meanwhile: a CPU core and its host's memory."""
    source: str = ""


@dataclass(frozen=True)
class Measured:
    """Constants of one operation over so many devices, in place of the formula."""

    operation: str
    backend: str
    devices: int
    GBps: float
    """Bytes over the busiest link, by the second."""
    latency_us: float
    hosts: int = 1
    """That the devices are on."""
    from_bytes: int = 0
    """Of the whole tensor: smaller ones have constants of their own, because caches hold them."""
    source: str = ""


@dataclass(frozen=True)
class Cluster:
    """Hosts that are all alike."""

    name: str
    hosts: int
    devices_per_host: int
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    price_per_hour: float | None = None
    """Of the whole cluster, in US dollars."""
    measured: tuple[Measured, ...] = ()
    backend: Literal["nccl", "gloo"] = "nccl"
    knowledge: Literal["catalogue", "fitted", "measured"] = "catalogue"
    """Where its links' constants come from: intervals depend on it."""
    servers_apart: bool = False
    """Parameter servers have hosts of their own, as on rehearsed ones; else they share those of the devices."""
    summary: str = ""
    source: str = ""

    @property
    def size(self) -> int:
        return self.hosts * self.devices_per_host

    @property
    def has_gpus(self) -> bool:
        """Else devices are cores of the host, which nobody has to tell what to do."""
        return self.backend == "nccl" or self.devices[0].host_memory_GBps is not None

    @property
    def host_GBps(self) -> float | None:
        """What a GPU's process moves in host memory, assumed where it was not measured; None for cores of the host."""
        return (self.devices[0].host_memory_GBps or HOST_UPDATE_GBps) if self.has_gpus else None

    def device_at(self, place: int) -> Device:
        """The kind of the device at this place of a host."""
        for device in self.devices:
            if place < device.count:
                return device
            place -= device.count
        raise IndexError(f"{self.name} has no device {place} on a host")

    def link(self, between: Between) -> Link | None:
        """The one that joins all there are of a kind."""
        return next((link for link in self.links if link.between == between and link.group is None), None)

    def link_between(self, place: int, other: int) -> Link | None:
        """The closest one that joins two devices of a host."""
        within = [link for link in self.links if link.between == "devices"]
        for link in sorted(within, key=lambda link: link.group or self.devices_per_host + 1):
            if link.group is None or place // link.group == other // link.group:
                return link
        return None

    def measured_for(self, operation: str, backend: str, devices: int, hosts: int, bytes: int) -> Measured | None:
        """Constants of just this operation, if there are any."""
        wanted = operation, backend, devices, hosts
        fitting = [
            each
            for each in self.measured
            if (each.operation, each.backend, each.devices, each.hosts) == wanted and each.from_bytes <= bytes
        ]
        return max(fitting, key=lambda each: each.from_bytes, default=None)

    def with_link(self, between: Between, GBps: float) -> Cluster:
        """The same with one link's bandwidth replaced by a fitted one; what was measured for operations is dropped."""
        links = tuple(
            replace(link, GBps=GBps, source="fitted") if link.between == between else link for link in self.links
        )
        return replace(self, links=links, measured=(), knowledge="fitted")
