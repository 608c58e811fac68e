"""Fit latency and bandwidth to timed transfers, build a cluster from them and report it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from scalewise.core.units import Printable, bytes_text, seconds_text
from scalewise.hardware.cluster import RING, Cluster, Device, Link, Measured
from scalewise.hardware.collectives import busiest_bytes, sends
from scalewise.launch.placement import Placement
from scalewise.predict.collective_seconds import link_bytes
from scalewise.predict.network import SEND
from scalewise.probe.contention import ComputeDuringReduce, DeviceRates
from scalewise.probe.link_benchmarks import SHARED_CHANNEL_RATIO, ConcurrentTransfers, Topology

Point = tuple[float, float]
"""Bytes over the busiest link, and seconds of the transfer."""

GOOD_FIT = 0.03
"""Relative root-mean-square error below which one line is not split into two."""


@dataclass(frozen=True)
class Line:
    """Linear model of a transfer, seconds = latency + bytes / bandwidth, and its error."""

    latency_us: float
    GBps: float
    error_percent: float
    """Median relative error over the points."""

    def seconds(self, bytes: float) -> float:
        return self.latency_us * 1e-6 + bytes / (self.GBps * 1e9)


def fit_line(points: Sequence[Point]) -> Line:
    """Fit a line by least squares, weighting each squared error by 1 / seconds.

    The weight is between absolute errors, which ignore small transfers, and relative errors, which overrate them.
    Latency and bandwidth are never negative.
    """
    if not points:
        raise ValueError("fit_line needs at least one point")
    latency, per_byte = _least_squares(points)
    if latency < 0 or len(points) == 1:
        latency, per_byte = 0.0, _mean_slope(points)
    if per_byte <= 0:
        latency, per_byte = min(seconds for _, seconds in points), _mean_slope(points[-1:])
    errors = sorted(abs(latency + bytes * per_byte - seconds) / seconds for bytes, seconds in points)
    return Line(latency * 1e6, 1e-9 / per_byte, 100 * errors[len(errors) // 2])


def fit_pieces(points: Sequence[Point], fewest: int = 3) -> list[tuple[float, Line]]:
    """Fit one line, or two if that halves the error: below and above the size of the caches.

    Returns each line with the smallest number of bytes to which it applies. `points` are sorted by bytes, and each line
    has at least `fewest` of them.
    """
    whole = fit_line(points)
    if squared_error(whole, points) < GOOD_FIT**2 * sum(seconds for _, seconds in points):
        return [(0.0, whole)]
    smallest_error, pieces = squared_error(whole, points) / 2, [(0.0, whole)]
    for split in range(fewest, len(points) - fewest + 1):
        below, above = fit_line(points[:split]), fit_line(points[split:])
        error = squared_error(below, points[:split]) + squared_error(above, points[split:])
        if error < smallest_error:
            border = math.sqrt(points[split - 1][0] * points[split][0])
            smallest_error, pieces = error, [(0.0, below), (border, above)]
    return pieces


def squared_error(line: Line, points: Sequence[Point]) -> float:
    return sum((line.seconds(bytes) - seconds) ** 2 / seconds for bytes, seconds in points)


def _least_squares(points: Sequence[Point]) -> tuple[float, float]:
    """Latency and seconds per byte that minimise sum((latency + bytes x slope - seconds)² / seconds).

    Solves two linear equations; a negative latency means that they have no unique solution.
    """
    ones = sum(1 / seconds for _, seconds in points)
    mixed = sum(bytes / seconds for bytes, seconds in points)
    squares = sum(bytes * bytes / seconds for bytes, seconds in points)
    left, right = float(len(points)), sum(bytes for bytes, _ in points)
    determinant = ones * squares - mixed * mixed
    if determinant <= 1e-12 * ones * squares:
        return -1.0, 0.0
    return (left * squares - right * mixed) / determinant, (ones * right - mixed * left) / determinant


def _mean_slope(points: Sequence[Point]) -> float:
    """Seconds per byte of the least-squares line through the origin."""
    return sum(bytes for bytes, _ in points) / sum(bytes * bytes / seconds for bytes, seconds in points)


@dataclass(frozen=True)
class MeasuredOperation:
    """Latency and bandwidth of one operation on a number of devices, and the points they were fitted to.

    If caches matter, an operation has two of these, each valid from its `from_bytes` on.
    """

    operation: str
    devices: int
    hosts: int
    from_bytes: int
    """Smallest tensor to which the constants apply, in bytes of the whole tensor."""
    latency_us: float
    GBps: float
    error_percent: float
    """Median relative error of the fit."""
    points: tuple[tuple[int, float], ...]
    """Bytes of the whole tensor and seconds of every timed size."""
    unstable: bool = False
    """Whether other programs disturbed many calls of most sizes."""


@dataclass(frozen=True)
class TopologyGroup:
    """GPUs, or groups of GPUs, and the kind of connection between them."""

    joined_by: str
    members: tuple[str | TopologyGroup, ...]


@dataclass(frozen=True)
class LinkReport(Printable):
    """Report on the measured links of this machine. The cluster itself is written to the TOML file."""

    name: str
    device: str
    devices: int
    hosts: int
    link: str | None
    backend: str
    operations: Sequence[MeasuredOperation]
    together: float | None
    """Seconds of two simultaneous transfers divided by those of one; None for one device."""
    shared: bool
    """Whether two simultaneous transfers share a channel."""
    beside_network: float | None
    """Slowdown of compute during an all-reduce; None for one device."""
    beside_compute: float
    """Slowdown of matrix multiplications while all devices of a host compute."""
    beside_memory: float
    """Slowdown of memory-bound operations while all devices of a host compute."""
    host_copy_GBps: float
    """Bandwidth of copies between host memory and one device."""
    topology: TopologyGroup | None
    """Connections between the GPUs; None without NVIDIA GPUs."""
    refused: Sequence[str] = field(default_factory=tuple)
    path: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __rich__(self) -> RenderableType:
        return Group(*self._parts())

    def _parts(self) -> Iterator[RenderableType]:
        emulated = f"emulated hosts connected by {self.link}" if self.link else "hosts"
        hosts = f" on {self.hosts} {emulated}" if self.hosts > 1 else ""
        yield Text.assemble((self.name, "bold"), f": {self.devices} x {self.device}{hosts}, {self.backend}")
        yield Text()
        yield _tree(self.topology) if self.topology else Text("no NVIDIA GPU, so no topology", "dim")
        yield Text()
        if self.operations:
            yield _table(self.operations)
            yield Text()
        yield from (Text(sentence) for sentence in self.sentences)
        yield from (Text(sentence, "yellow") for sentence in self.warnings)
        if self.path:
            yield Text()
            yield Text(f"written to {self.path}")

    @property
    def sentences(self) -> list[str]:
        sentences = []
        if self.together is not None:
            channels = "they share a channel" if self.shared else "each has its own channel"
            sentences.append(f"Two simultaneous transfers take {self.together:.2f} times as long as one: {channels}.")
        if self.beside_network is not None:
            sentences.append(f"Compute takes {self.beside_network:.2f} times as long during an all-reduce.")
        if self.devices > self.hosts:
            sentences.append(
                f"While all devices of a host compute, matrix multiplications take {self.beside_compute:.2f} times and "
                f"memory-bound operations {self.beside_memory:.2f} times as long."
            )
        sentences.append(f"Copies between host memory and a device reach {self.host_copy_GBps:.3g} GB/s.")
        return sentences

    @property
    def warnings(self) -> list[str]:
        unstable = list(dict.fromkeys(operation.operation for operation in self.operations if operation.unstable))
        busy = (
            f"The seconds of {', '.join(unstable)} varied by more than a factor of two: other programs are running "
            "here, or the network is in use. Measure again when it is idle."
        )
        return [*self.refused, *([busy] if unstable else [])]


def _table(operations: Sequence[MeasuredOperation]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("operation", no_wrap=True)
    for title in ("devices", "from size", "latency", "bandwidth", "fit error", "largest timed"):
        table.add_column(title, justify="right", no_wrap=True)
    for operation in operations:
        size, seconds = operation.points[-1]
        table.add_row(
            operation.operation,
            str(operation.devices),
            bytes_text(operation.from_bytes) if operation.from_bytes else "",
            seconds_text(operation.latency_us * 1e-6),
            f"{operation.GBps:.3g} GB/s",
            f"±{operation.error_percent:.0f} %",
            f"{bytes_text(size)} in {seconds_text(seconds)}",
        )
    return table


def _tree(group: TopologyGroup) -> Tree:
    tree = Tree(group.joined_by)
    _add_members(tree, group)
    return tree


def _add_members(tree: Tree, group: TopologyGroup) -> None:
    for member in group.members:
        if isinstance(member, TopologyGroup):
            _add_members(tree.add(member.joined_by), member)
        else:
            tree.add(member)


@dataclass(frozen=True)
class LinkMeasurements:
    """All measurements from which a cluster is built."""

    device: str
    memory_GB: float
    operations: list[MeasuredOperation]
    refused: list[str]
    """One sentence for every operation that the backend does not support."""
    concurrent: ConcurrentTransfers | None
    during_reduce: ComputeDuringReduce | None
    rates_alone: DeviceRates
    rates_together: DeviceRates
    """Rates with all devices busy; the slowest device counts at every piece of work."""
    host_copy_GBps: float
    host_copy_latency_us: float
    host_copies_share: bool
    """Whether copies of several devices share the bandwidth of the host."""
    topology: Topology | None
    when: str
    host_memory_GBps: float | None = None

    @property
    def shared(self) -> bool:
        return self.concurrent is not None and self.concurrent.over_alone > SHARED_CHANNEL_RATIO


def fit_operation(
    operation: str, devices: int, hosts: int, points: Sequence[tuple[int, float]]
) -> list[MeasuredOperation]:
    """Fit latency and bandwidth to timed (bytes of the whole tensor, seconds).

    Bandwidth is fitted to the bytes that the busiest link carries, as in predictions.
    """
    name = "all_reduce" if operation == RING else operation
    carried = link_bytes(name, devices, 1_000_000) / 1_000_000  # bytes over the busiest link per byte of the tensor
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


def undisturbed(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Replace the seconds of a size by those of a larger one that took less time.

    A larger tensor does not take less time, so other programs must have disturbed the calls of the smaller one.
    """
    least = float("inf")
    kept = []
    for bytes, seconds in reversed(points):
        least = min(least, seconds)
        kept.append((bytes, least))
    return kept[::-1]


def backend_of(placement: Placement) -> Literal["gloo", "nccl"]:
    return "nccl" if placement.device_kind == "cuda" else "gloo"


def cluster_from_measurements(placement: Placement, measurements: LinkMeasurements) -> Cluster:
    backend = backend_of(placement)
    per_host = placement.devices // placement.hosts
    device = Device(
        name=measurements.device,
        count=per_host,
        memory_GB=measurements.memory_GB,
        peak_TFLOPS=measurements.rates_alone.TFLOPS,
        memory_GBps=measurements.rates_alone.memory_GBps,
        launch_us=measurements.rates_alone.launch_us,
        copy_GBps=_copy_GBps(placement, measurements.during_reduce)
        if backend == "gloo" and measurements.during_reduce
        else None,
        beside_compute=max(1.0, measurements.rates_alone.TFLOPS / measurements.rates_together.TFLOPS),
        beside_memory=max(1.0, measurements.rates_alone.memory_GBps / measurements.rates_together.memory_GBps),
        host_memory_GBps=measurements.host_memory_GBps,
    )
    unstable = any(operation.unstable for operation in measurements.operations)
    source = f"measured by scalewise doctor, {measurements.when}" + (", with unstable timings" if unstable else "")
    return Cluster(
        name=_name(placement),
        hosts=placement.hosts,
        devices_per_host=per_host,
        devices=(device,),
        links=tuple(_links(placement, measurements, source)),
        measured=tuple(_measured(measurements, backend)),
        backend=backend,
        knowledge="measured",
        servers_apart=placement.hosts > 1,
        summary=f"{placement.hosts} hosts, {source}" if placement.ranks_on else f"this machine, {source}",
        source=source,
    )


def _measured(measurements: LinkMeasurements, backend: str) -> list[Measured]:
    """Measured operations of the cluster. A send is between two devices, whatever the number of ranks was."""
    return [
        Measured(
            operation=operation.operation,
            backend=backend,
            devices=2 if operation.operation == SEND else operation.devices,
            GBps=operation.GBps,
            latency_us=operation.latency_us,
            hosts=operation.hosts,
            from_bytes=operation.from_bytes,
        )
        for operation in measurements.operations
        if operation.operation != SEND or operation in _sends(measurements)
    ]


def _sends(measurements: LinkMeasurements) -> list[MeasuredOperation]:
    """Sends that describe the links: within a host those on two devices, between hosts those on the most devices."""
    sends = [operation for operation in measurements.operations if operation.operation == SEND]
    within_host = [send for send in sends if send.hosts == 1 and send.devices == 2]
    most = max((send.devices for send in sends if send.hosts > 1), default=0)
    return within_host + [send for send in sends if send.hosts > 1 and send.devices == most]


def _links(placement: Placement, measurements: LinkMeasurements, source: str) -> list[Link]:
    cpu = placement.device_kind == "cpu"
    memory = Link(
        "host-device", "memory" if cpu else "copy", measurements.host_copy_GBps, measurements.host_copy_latency_us
    )
    links = [replace(memory, shared=measurements.host_copies_share, by_device=cpu, source=source)]
    all_sends = _sends(measurements)
    for between, hosts in (("devices", (1,)), ("hosts", range(2, placement.hosts + 1))):
        pieces = [send for send in all_sends if send.hosts in hosts]
        if not pieces:
            continue
        largest = pieces[-1]
        kind = placement.link or "sockets" if between == "hosts" else backend_of(placement)
        shared, both_ways = between == "hosts" or measurements.shared, None
        if placement.device_kind == "slice" and measurements.concurrent:
            # Every slice has its own process and cores. With two slices, the two directions compete inside those
            # processes, which does not show that different pairs share a channel; that takes four slices.
            shared = shared and placement.devices >= 4
            both_ways = measurements.concurrent.both_ways_GBps
        link = Link(between, kind, largest.GBps, pieces[0].latency_us, shared, source=source)  # type: ignore[arg-type]
        links.append(replace(link, both_ways_GBps=both_ways))
    return links


def _copy_GBps(placement: Placement, during_reduce: ComputeDuringReduce) -> float | None:
    """Bytes that one device sends and receives in an all-reduce, per second of compute lost to them."""
    if during_reduce.lost_seconds_per_reduce <= 0:
        return None
    transferred = busiest_bytes(sends("gloo", "all_reduce", placement.devices, during_reduce.bytes))
    return transferred / during_reduce.lost_seconds_per_reduce / 1e9


def _name(placement: Placement) -> str:
    name = f"here-{placement.devices}x-{placement.device_kind}"
    link = f"-{placement.link}" if placement.link else ""
    return name + (f"-{placement.hosts}-hosts{link}" if placement.hosts > 1 else "")
