"""What ranks brought back, as a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scalewise.clusters.cluster import RING, Cluster, Device, Link, Measured
from scalewise.collectives import busiest_bytes, sends
from scalewise.linking.beside import Beside
from scalewise.linking.fit import fit_pieces
from scalewise.linking.kernels import Pace
from scalewise.linking.sharing import SHARED, Together
from scalewise.linking.topology import Topology
from scalewise.results.links import MeasuredOperation
from scalewise.session.placement import Placement
from scalewise.simulation.network import SEND
from scalewise.simulation.price import link_bytes


@dataclass(frozen=True)
class Seen:
    """Everything that was timed."""

    device: str
    memory_GB: float
    operations: list[MeasuredOperation]
    refused: list[str]
    """A sentence for each operation that the backend does not have."""
    together: Together | None
    beside: Beside | None
    alone: Pace
    all_at_once: Pace
    """The slowest device's at each piece of work."""
    host_copy_GBps: float
    host_copy_latency_us: float
    host_copies_share: bool
    topology: Topology | None
    when: str
    host_memory_GBps: float | None = None

    @property
    def shared(self) -> bool:
        return self.together is not None and self.together.over_alone > SHARED


def fit_operation(
    operation: str, devices: int, hosts: int, points: Sequence[tuple[int, float]]
) -> list[MeasuredOperation]:
    """By the bytes that the busiest link carries, as prices are made of."""
    name = "all_reduce" if operation == RING else operation
    carried = link_bytes(name, devices, 1_000_000) / 1_000_000
    pieces = fit_pieces([(bytes * carried, seconds) for bytes, seconds in points])
    borders = [round(start / carried) for start, _ in pieces] + [1 << 62]
    return [
        MeasuredOperation(
            operation=operation,
            devices=devices,
            hosts=hosts,
            from_bytes=borders[number],
            latency_us=line.latency_us,
            GBps=line.GBps,
            error_percent=line.error_percent,
            points=tuple(point for point in points if borders[number] <= point[0] < borders[number + 1]),
        )
        for number, (_, line) in enumerate(pieces)
    ]


def backend_of(placement: Placement) -> Literal["gloo", "nccl"]:
    return "nccl" if placement.device_kind == "cuda" else "gloo"


def cluster_of_seen(placement: Placement, seen: Seen) -> Cluster:
    backend = backend_of(placement)
    per_host = placement.devices // placement.hosts
    device = Device(
        name=seen.device,
        count=per_host,
        memory_GB=seen.memory_GB,
        peak_TFLOPS=seen.alone.TFLOPS,
        memory_GBps=seen.alone.memory_GBps,
        launch_us=seen.alone.launch_us,
        copy_GBps=_copy_GBps(placement, seen.beside) if backend == "gloo" and seen.beside else None,
        beside_compute=max(1.0, seen.alone.TFLOPS / seen.all_at_once.TFLOPS),
        beside_memory=max(1.0, seen.alone.memory_GBps / seen.all_at_once.memory_GBps),
        host_memory_GBps=seen.host_memory_GBps,
    )
    source = f"measured by scalewise doctor, {seen.when}"
    return Cluster(
        name=_name(placement),
        hosts=placement.hosts,
        devices_per_host=per_host,
        devices=(device,),
        links=tuple(_links(placement, seen, source)),
        measured=tuple(_measured(seen, backend)),
        backend=backend,
        knowledge="measured",
        servers_apart=placement.hosts > 1,
        summary=f"this machine, {source}",
        source=source,
    )


def _measured(seen: Seen, backend: str) -> list[Measured]:
    """A send is between two, however many could have."""
    return [
        Measured(
            operation=each.operation,
            backend=backend,
            devices=2 if each.operation == SEND else each.devices,
            GBps=each.GBps,
            latency_us=each.latency_us,
            hosts=each.hosts,
            from_bytes=each.from_bytes,
        )
        for each in seen.operations
        if each.operation != SEND or each in _sends(seen)
    ]


def _sends(seen: Seen) -> list[MeasuredOperation]:
    """Inside a host those of the first two devices, between hosts those of the most."""
    made = [each for each in seen.operations if each.operation == SEND]
    within = [each for each in made if each.hosts == 1 and each.devices == 2]
    most = max((each.devices for each in made if each.hosts > 1), default=0)
    return within + [each for each in made if each.hosts > 1 and each.devices == most]


def _links(placement: Placement, seen: Seen, source: str) -> list[Link]:
    cpu = placement.device_kind == "cpu"
    memory = Link("host-device", "memory" if cpu else "copy", seen.host_copy_GBps, seen.host_copy_latency_us)
    links = [replace(memory, shared=seen.host_copies_share, by_device=cpu, source=source)]
    found = _sends(seen)
    for between, hosts in (("devices", (1,)), ("hosts", range(2, placement.hosts + 1))):
        pieces = [each for each in found if each.hosts in hosts]
        if not pieces:
            continue
        one = pieces[-1]  # of the largest
        own = placement.link or "sockets" if between == "hosts" else backend_of(placement)
        shared, both_ways = between == "hosts" or seen.shared, None
        if placement.device_kind == "slice" and seen.together:
            # Every slice has a process and cores of its own; it is in that process that both ways meet.
            shared = shared and placement.devices >= 4
            both_ways = seen.together.both_ways_GBps
        link = Link(between, own, one.GBps, pieces[0].latency_us, shared, source=source)  # type: ignore[arg-type]
        links.append(replace(link, both_ways_GBps=both_ways))
    return links


def _copy_GBps(placement: Placement, beside: Beside) -> float | None:
    """Bytes that pass one device in an all-reduce, over what that takes from its compute."""
    if beside.taken_seconds <= 0:
        return None
    through = busiest_bytes(sends("gloo", "all_reduce", placement.devices, beside.bytes))
    return through / beside.taken_seconds / 1e9


def _name(placement: Placement) -> str:
    name = f"here-{placement.devices}x-{placement.device_kind}"
    return name + (f"-{placement.hosts}-hosts-{placement.link}" if placement.hosts > 1 else "")
