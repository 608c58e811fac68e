"""`scalewise doctor --save`: measure this machine as a cluster."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
import torch

from scalewise import __version__
from scalewise.core.errors import UserError
from scalewise.core.files import cache_folder, check_writable, write_atomically
from scalewise.hardware.cluster import RING, Cluster, cluster_text, read_cluster
from scalewise.launch.cpu_cores import allowed_cores
from scalewise.launch.devices import device_name, settle
from scalewise.launch.placement import Placement
from scalewise.launch.real_hosts import real_hosts
from scalewise.launch.session import Session
from scalewise.predict.network import SEND
from scalewise.probe.contention import (
    DeviceRates,
    compute_during_reduce,
    copies_alone,
    copies_together,
    host_memory_together,
    rates_in_turn,
)
from scalewise.probe.link_benchmarks import (
    SHARED_CHANNEL_RATIO,
    Branch,
    TimedCalls,
    Topology,
    UnsupportedOperation,
    nvml_topology,
    on_clock_of_first,
    read_clock,
    seconds_of,
    time_operations,
    two_at_once,
)
from scalewise.probe.link_fit import (
    LinkMeasurements,
    LinkReport,
    MeasuredOperation,
    TopologyGroup,
    cluster_from_measurements,
    fit_operation,
    undisturbed,
)

OPERATIONS = (SEND, "broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter", RING)
SECONDS, QUICK_SECONDS = 0.15, 0.03
"""Seconds spent on one operation at one size."""
EVERY_COUNT = 8
"""Number of devices up to which every count is measured. With more devices, powers of two and all of them are."""
HERE = "here"

OnProgress = Callable[[str], None]


@dataclass(frozen=True)
class MeasuredCluster:
    """This machine as a cluster, and a report of its measurements."""

    cluster: Cluster
    report: LinkReport


def measure_links(
    devices: int | None = None,
    *,
    device_kind: str = "auto",
    hosts: int = 1,
    link: str | None = None,
    slice_percent: int | None = None,
    quick: bool = False,
    save: Path | str | None = None,
    on_progress: OnProgress | None = None,
) -> MeasuredCluster:
    """Time collectives and transfers on 2 to N devices, and fit a latency and a bandwidth to each operation.

    >>> print(measure_links(2, save="here").report)
    """
    placement = _placement(devices, device_kind, hosts, link, slice_percent)
    path = _path(save)
    tell = on_progress or (lambda _: None)
    measurements = _measure(placement, QUICK_SECONDS if quick else SECONDS, tell)
    cluster = cluster_from_measurements(placement, measurements)
    if path:
        version = f"scalewise {__version__} doctor --save, {measurements.when}, torch {torch.__version__}"
        write_atomically(path, cluster_text(cluster, [f"Measured by {version}."]).encode())
    return MeasuredCluster(cluster, _report(placement, measurements, cluster, path))


def here_path() -> Path:
    """File with the measured cluster of this machine."""
    return cache_folder() / "clusters" / f"{platform.node() or 'machine'}-{here_device().type}.toml"


def here_device() -> torch.device:
    return torch.device(_kind("auto"))


def _kind(device_kind: str) -> str:
    if device_kind != "auto":
        return device_kind
    return "cuda" if torch.cuda.is_available() else "cpu"


def _path(save: Path | str | None) -> Path | None:
    if save is None:
        return None
    if str(save) == HERE:
        path = here_path()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot save the cluster of this machine in {path.parent}: {error.strerror}; set XDG_CACHE_HOME to a "
                "folder that can be written, or describe the cluster with --cluster FILE"
            ) from None
        run = real_hosts()
        if run and len(run.hosts) > 1:
            raise UserError(f"--save here is for this machine, and the run has {len(run.hosts)} hosts; name a file")
        return path
    check_writable(Path(save))
    return Path(save)


def _placement(
    devices: int | None, device_kind: str, hosts: int, link: str | None, slice_percent: int | None
) -> Placement:
    kind = "cpu" if hosts > 1 and device_kind == "auto" else _kind(device_kind)
    if run := real_hosts():
        placement = settle(Placement(run.size if devices is None else devices, device_kind, hosts, link))
        per_host = {placement.ranks_on.count(host) for host in placement.ranks_on}
        if len(per_host) > 1:
            raise UserError(
                f"{placement.devices} devices are not the same number on each of {placement.hosts} hosts; give a "
                "multiple with --devices"
            )
        return placement
    available = {"cuda": torch.cuda.device_count(), "slice": 2}.get(kind, len(allowed_cores()))
    count = max(available, hosts) if devices is None else devices
    if count % hosts:
        raise UserError(f"{count} devices cannot be divided evenly among {hosts} hosts; valid: multiples of {hosts}")
    return settle(Placement(count, kind, hosts=hosts, link=link, slice_percent=slice_percent))


def _measure(placement: Placement, seconds: float, tell: OnProgress) -> LinkMeasurements:
    several = placement.devices > 1
    with Session(placement) as session:
        tell("compute and memory rates of one device, and of all at once")
        [rates, *_] = session.run(rates_in_turn, 32 * seconds)
        host_copy = _host_copy(session, rates.together, seconds)
        host_memory = None
        if placement.device_kind != "cpu":
            [host_memory, *_] = session.run(host_memory_together, 4 * seconds)
        operations: list[MeasuredOperation] = []
        refused: list[str] = []
        for count in _counts(placement.devices):
            fitted, unsupported = _operations(session, count, seconds, tell)
            operations += fitted
            refused += unsupported
        concurrent, during_reduce = None, None
        if several:
            tell("two simultaneous transfers")
            concurrent = session.run(two_at_once)[0]
            tell("compute during an all-reduce")
            ranks = session.run(compute_during_reduce, 8 * seconds)
            during_reduce = sorted(ranks, key=lambda rank: rank.lost_seconds_per_reduce)[len(ranks) // 2]
        [(name, memory_GB), *_] = session.run(_name_and_memory)
    topology = nvml_topology() if placement.device_kind != "cpu" else None
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    if placement.device_kind == "cpu":
        on_this_machine = placement.devices // placement.hosts if placement.ranks_on else placement.devices
        memory_GB = psutil.virtual_memory().total / 1e9 / on_this_machine
    return LinkMeasurements(
        device=name,
        memory_GB=memory_GB,
        operations=operations,
        refused=refused,
        concurrent=concurrent,
        during_reduce=during_reduce,
        rates_alone=rates.alone,
        rates_together=rates.together,
        host_copy_GBps=host_copy[0],
        host_copy_latency_us=host_copy[1],
        host_copies_share=host_copy[2],
        topology=topology,
        when=when,
        host_memory_GBps=host_memory,
    )


def _name_and_memory(worker: Any) -> tuple[str, float]:
    """Name and memory (GB) of the device; 0 GB for a CPU."""
    total = torch.cuda.get_device_properties(worker.device).total_memory if worker.device.type == "cuda" else 0
    return device_name(worker.device), total / 1e9


def _counts(devices: int) -> list[int]:
    if devices <= EVERY_COUNT:
        return list(range(2, devices + 1))
    return sorted({2**power for power in range(1, devices.bit_length()) if 2**power <= devices} | {devices})


def _host_copy(session: Session, together_rates: DeviceRates, seconds: float) -> tuple[float, float, bool]:
    """GB/s and latency (µs) of copies between host memory and a device, and whether devices share the bandwidth.

    For cpu devices it is a copy in memory by the core itself, while the other cores copy too.
    """
    if session.placement.device_kind == "cpu":
        return together_rates.copy_GBps, 0.0, False
    [alone, *_] = session.run(copies_alone, 4 * seconds)
    slowest = min(session.run(copies_together, 4 * seconds), key=lambda copy: copy.GBps)
    return alone.GBps, alone.latency_us, alone.GBps / slowest.GBps > SHARED_CHANNEL_RATIO


def _operations(
    session: Session, count: int, seconds: float, tell: OnProgress
) -> tuple[list[MeasuredOperation], list[str]]:
    """Fitted operations on `count` devices, and a sentence for every unsupported operation."""

    def on_report(rank: int, report: object) -> None:
        if rank == 0 and isinstance(report, tuple):
            tell(f"{report[0]} over {report[1]} of {session.placement.devices} devices")

    clocks = [session.run(read_clock)] if session.placement.ranks_on else []
    by_rank = session.run(time_operations, count, OPERATIONS, seconds, on_report=on_report)[:count]
    if clocks:
        clocks.append(session.run(read_clock))
        by_rank = [
            [on_clock_of_first(calls, *readings) if isinstance(calls, TimedCalls) else calls for calls in rank]
            for rank, readings in zip(by_rank, zip(*clocks, strict=True), strict=False)
        ]
    points: dict[str, list[tuple[int, float]]] = {}
    unstable: Counter[str] = Counter()
    hosts = len({session.placement.host_of(rank) for rank in range(count)})
    refused: list[str] = []
    for calls in zip(*by_rank, strict=True):
        first = calls[0]
        if isinstance(first, UnsupportedOperation):
            refused.append(f"{first.operation} is not supported on these devices: {first.reason}")
            continue
        assert isinstance(first, TimedCalls)
        # The ranks between the ends of a send take no part in it.
        timed = seconds_of((calls[0], calls[-1]) if first.operation == SEND else calls)
        points.setdefault(first.operation, []).append((first.bytes, timed.seconds))
        unstable[first.operation] += timed.unstable
    return [
        replace(piece, unstable=2 * unstable[operation] > len(timed))
        for operation, timed in points.items()
        for piece in fit_operation(operation, count, hosts, undisturbed(timed))
    ], refused


def _report(placement: Placement, measurements: LinkMeasurements, cluster: Cluster, path: Path | None) -> LinkReport:
    return LinkReport(
        name=cluster.name,
        device=measurements.device,
        devices=placement.devices,
        hosts=placement.hosts,
        link=placement.link,
        backend=cluster.backend,
        operations=measurements.operations,
        together=measurements.concurrent.over_alone if measurements.concurrent else None,
        shared=measurements.shared,
        beside_network=measurements.during_reduce.slowdown if measurements.during_reduce else None,
        beside_compute=cluster.devices[0].beside_compute,
        beside_memory=cluster.devices[0].beside_memory,
        host_copy_GBps=measurements.host_copy_GBps,
        topology=_topology_group(measurements.topology, measurements.topology.tree) if measurements.topology else None,
        refused=tuple(dict.fromkeys(measurements.refused)),
        path=str(path) if path else None,
    )


def _topology_group(topology: Topology, branch: Branch) -> TopologyGroup:
    return TopologyGroup(
        branch.joined_by,
        tuple(
            _topology_group(topology, member)
            if isinstance(member, Branch)
            else f"gpu {member}: {topology.names[member]}"
            for member in branch.members
        ),
    )


def cluster_here(on_progress: Callable[[str], None] | None = None) -> tuple[Cluster, str]:
    """Return the cluster of this machine, measured now unless it is saved, and the source of its links.

    A saved cluster of another device is measured again.
    """
    path = here_path()
    if path.is_file():
        saved = read_cluster(path)
        if saved.devices[0].name == device_name(here_device()):
            return saved, f"links {saved.source}"
    tell = on_progress or (lambda _: None)
    tell("measuring the links of this machine (only once, at most about a minute)")
    return measure_links(save=HERE, on_progress=on_progress).cluster, f"links measured now and saved in {path}"
