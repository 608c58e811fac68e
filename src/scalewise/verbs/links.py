"""`scalewise doctor --save`: this machine measured as a cluster, its links included."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
import torch

from scalewise import __version__
from scalewise.atomic import check_writable, write_atomically
from scalewise.clusters.cluster import RING, Cluster
from scalewise.clusters.write import cluster_text
from scalewise.data.cache import cache_folder
from scalewise.errors import UserError
from scalewise.linking.beside import compute_beside, host_memory_together, pace_alone, pace_together
from scalewise.linking.copies import copies_alone, copies_together
from scalewise.linking.kernels import Pace
from scalewise.linking.operations import Refused, Timed, seconds_of, time_operations
from scalewise.linking.seen import Seen, cluster_of_seen, fit_operation
from scalewise.linking.sharing import SHARED, two_at_once
from scalewise.linking.topology import Branch, Topology, nvml_topology
from scalewise.results.links import Join, LinkReport, MeasuredOperation
from scalewise.session.cores import allowed_cores
from scalewise.session.devices import settle
from scalewise.session.hardware import device_name
from scalewise.session.placement import Placement
from scalewise.session.session import Session

OPERATIONS = ("send", "broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter", RING)
SECONDS, QUICK_SECONDS = 0.15, 0.03
"""For one operation at one size."""
EVERY_COUNT = 8
"""Devices up to which every count from 2 on is measured; beyond, powers of two and all."""
HERE = "here"

OnProgress = Callable[[str], None]


@dataclass(frozen=True)
class Here:
    """This machine as a cluster, and what was seen on the way."""

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
) -> Here:
    """Time what devices send each other, over 2 to N of them, and fit a latency and a bandwidth to each operation.

    >>> print(measure_links(2, save="here").report)
    """
    placement = _placement(devices, device_kind, hosts, link, slice_percent)
    path = _path(save)
    tell = on_progress or (lambda _: None)
    seen = _look(placement, QUICK_SECONDS if quick else SECONDS, tell)
    cluster = cluster_of_seen(placement, seen)
    if path:
        remarks = [f"Measured by scalewise {__version__} doctor --save, {seen.when}, torch {torch.__version__}."]
        write_atomically(path, cluster_text(cluster, remarks).encode())
    return Here(cluster, _report(placement, seen, cluster, path))


def here_path() -> Path:
    """Where the cluster of this machine is kept between runs."""
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
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
    check_writable(Path(save))
    return Path(save)


def _placement(
    devices: int | None, device_kind: str, hosts: int, link: str | None, slice_percent: int | None
) -> Placement:
    kind = "cpu" if hosts > 1 and device_kind == "auto" else _kind(device_kind)
    there = {"cuda": torch.cuda.device_count(), "slice": 2}.get(kind, len(allowed_cores()))
    count = max(there, hosts) if devices is None else devices
    if count % hosts:
        raise UserError(f"{count} devices cannot be shared out evenly over {hosts} hosts; valid: multiples of {hosts}")
    return settle(Placement(count, kind, hosts=hosts, link=link, slice_percent=slice_percent))


def _look(placement: Placement, seconds: float, tell: OnProgress) -> Seen:
    several = placement.devices > 1
    with Session(placement) as session:
        tell("what one device does alone, and all at once")
        [alone, *_] = session.run(pace_alone, 16 * seconds)
        [all_at_once, *_] = session.run(pace_together, 16 * seconds)
        host_copy = _host_copy(session, all_at_once, seconds)
        host_memory = None
        if placement.device_kind != "cpu":
            [host_memory, *_] = session.run(host_memory_together, 4 * seconds)
        operations: list[MeasuredOperation] = []
        refused: list[str] = []
        for count in _counts(placement.devices):
            found, left_out = _operations(session, count, seconds, tell)
            operations += found
            refused += left_out
        together, beside = None, None
        if several:
            tell("two transfers at once")
            together = session.run(two_at_once)[0]
            tell("compute beside communication")
            besides = session.run(compute_beside, 8 * seconds)
            beside = sorted(besides, key=lambda each: each.taken_seconds)[len(besides) // 2]
        [about, *_] = session.run(_about)
    topology = nvml_topology() if placement.device_kind != "cpu" else None
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    name, memory_GB = about
    if placement.device_kind == "cpu":
        memory_GB = psutil.virtual_memory().total / 1e9 / placement.devices
    return Seen(
        device=name,
        memory_GB=memory_GB,
        operations=operations,
        refused=refused,
        together=together,
        beside=beside,
        alone=alone,
        all_at_once=all_at_once,
        host_copy_GBps=host_copy[0],
        host_copy_latency_us=host_copy[1],
        host_copies_share=host_copy[2],
        topology=topology,
        when=when,
        host_memory_GBps=host_memory,
    )


def _about(worker: Any) -> tuple[str, float]:
    total = torch.cuda.get_device_properties(worker.device).total_memory if worker.device.type == "cuda" else 0
    return device_name(worker.device), total / 1e9


def _counts(devices: int) -> list[int]:
    if devices <= EVERY_COUNT:
        return list(range(2, devices + 1))
    return sorted({2**power for power in range(1, devices.bit_length()) if 2**power <= devices} | {devices})


def _host_copy(session: Session, all_at_once: Pace, seconds: float) -> tuple[float, float, bool]:
    """On the CPU a copy in memory, by the core itself, while the others make theirs."""
    if session.placement.device_kind == "cpu":
        return all_at_once.copy_GBps, 0.0, False
    [alone, *_] = session.run(copies_alone, 4 * seconds)
    slowest = min(session.run(copies_together, 4 * seconds), key=lambda copy: copy.GBps)
    return alone.GBps, alone.latency_us, alone.GBps / slowest.GBps > SHARED


def _operations(
    session: Session, count: int, seconds: float, tell: OnProgress
) -> tuple[list[MeasuredOperation], list[str]]:
    def heard(rank: int, what: object) -> None:
        if rank == 0 and isinstance(what, tuple):
            tell(f"{what[0]} over {what[1]} of {session.placement.devices} devices")

    by_rank = session.run(time_operations, count, OPERATIONS, seconds, on_report=heard)[:count]
    points: dict[str, list[tuple[int, float]]] = {}
    hosts = session.placement.host_of(count - 1) + 1
    refused: list[str] = []
    for calls in zip(*by_rank, strict=True):
        first = calls[0]
        if isinstance(first, Refused):
            refused.append(f"{first.operation} is not there for these devices: {first.reason}")
            continue
        assert isinstance(first, Timed)
        points.setdefault(first.operation, []).append((first.bytes, seconds_of(calls)))
    return [
        fitted for operation, timed in points.items() for fitted in fit_operation(operation, count, hosts, timed)
    ], refused


def _report(placement: Placement, seen: Seen, cluster: Cluster, path: Path | None) -> LinkReport:
    return LinkReport(
        name=cluster.name,
        device=seen.device,
        devices=placement.devices,
        hosts=placement.hosts,
        link=placement.link,
        backend=cluster.backend,
        operations=seen.operations,
        together=seen.together.over_alone if seen.together else None,
        shared=seen.shared,
        beside_network=seen.beside.slowdown if seen.beside else None,
        beside_compute=cluster.devices[0].beside_compute,
        beside_memory=cluster.devices[0].beside_memory,
        host_copy_GBps=seen.host_copy_GBps,
        topology=_join(seen.topology, seen.topology.tree) if seen.topology else None,
        refused=tuple(dict.fromkeys(seen.refused)),
        path=str(path) if path else None,
    )


def _join(topology: Topology, branch: Branch) -> Join:
    return Join(
        branch.joined_by,
        tuple(
            _join(topology, member) if isinstance(member, Branch) else f"gpu {member}: {topology.names[member]}"
            for member in branch.members
        ),
    )
