"""Read timed cells from measurements, and fit the bandwidth of links to them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scalewise.core.errors import UserError
from scalewise.formats.profile import ProfileDocument, StepCost
from scalewise.formats.store import Environment, Measurement
from scalewise.hardware.catalogue import catalogue
from scalewise.hardware.cluster import Between, Cluster, Device, Link, Measured
from scalewise.predict.device_costs import Costs
from scalewise.predict.link_factors import LinkCalibration, MeasuredStep, calibrate_links, faster
from scalewise.predict.predictor import Predictor
from scalewise.strategies.base import Strategy
from scalewise.strategies.registry import is_reference, strategy_of

COMPUTING = ("load", "forward", "loss", "backward", "update")
BITS_PER_SECOND = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
PAYLOAD = 0.949
"""Payload fraction of 1500-byte Ethernet frames."""
EMULATED_LATENCY_us = 100.0
Outline = Callable[[Measurement], ProfileDocument]
"""Function that returns the sizes of a cell's workload, as a profile without steps."""


@dataclass(frozen=True)
class TimedCell:
    """A measured cell on several devices, and a profile made of the one-device cells of its workload."""

    cell: Measurement
    profile: ProfileDocument
    seconds: float
    """Measured seconds of a step."""

    @property
    def strategy(self) -> Strategy:
        options = ",".join(f"{name}={value}" for name, value in self.cell.options.items() if value not in (None, ""))
        return strategy_of(f"{self.cell.strategy}:{options}" if options else self.cell.strategy)

    @property
    def is_across(self) -> bool:
        """Whether the cell ran on several real hosts, rather than emulated ones."""
        return self.cell.hosts > 1 and self.cell.link is None

    def place_on(self, cluster: Cluster) -> Cluster:
        """Cluster with the cell's number of hosts, its devices distributed evenly, and its links between hosts."""
        if self.cell.hosts == 1:
            return replace(cluster, hosts=1)
        per_host = -(-self.cell.devices // self.cell.hosts)
        links = cluster.links
        if self.cell.link is not None:
            links = tuple(link for link in links if link.between != "hosts" or link.kind == self.cell.link)
            links += () if any(link.between == "hosts" for link in links) else (rehearsed(self.cell.link),)
        return replace(
            cluster,
            hosts=self.cell.hosts,
            devices_per_host=per_host,
            devices=(replace(cluster.devices[0], count=per_host),),
            links=links,
            servers_apart=True,
        )


def rehearsed(link: str) -> Link:
    """Link between emulated hosts of a given speed, such as '200mbit'."""
    match = re.fullmatch(r"([0-9.]+)(kbit|mbit|gbit)", link)
    if match is None:
        raise UserError(f"cannot read link '{link}'; valid are for example 200mbit, 1gbit")
    GBps = float(match[1]) * BITS_PER_SECOND[match[2]] / 8e9
    return Link("hosts", link, PAYLOAD * GBps, EMULATED_LATENCY_us, shared=True, source="its line rate")


def timed_cells(measurements: Sequence[Measurement], outline: Outline, samples: dict[str, int]) -> list[TimedCell]:
    """Successful cells on several devices for which one device was measured too.

    `samples`: samples per epoch, by environment.
    """
    successful = [cell for cell in measurements if cell.status == "ok" and cell.step_seconds is not None]
    profiles: dict[tuple[object, ...], ProfileDocument | None] = {}
    timed: list[TimedCell] = []
    for cell in successful:
        if cell.devices == 1 or cell.step_seconds is None:
            continue
        if (key := _profile_key(cell)) not in profiles:
            alone = [other for other in successful if _profile_key(other) == key and other.devices == 1]
            epoch = samples.get(cell.environment) or max(other.batch for other in successful)
            profiles[key] = profile_from(outline(cell), alone, epoch) if alone else None
        if profile := profiles[key]:
            timed.append(TimedCell(cell, profile, cell.step_seconds.median))
    return timed


def profile_from(outline: ProfileDocument, alone: Sequence[Measurement], samples: int) -> ProfileDocument:
    """Profile of one-device cells, preferably of `single` in eager mode, as steps of several devices are eager."""
    best = min(_preference(cell) for cell in alone)
    steps = {cell.batch: _step_cost(cell) for cell in alone if _preference(cell) == best}
    return outline.model_copy(
        update={
            "samples_per_epoch": samples,
            "steps": tuple(steps[batch] for batch in sorted(steps)),
            "execution": "graph" if best[1] else "eager",
        }
    )


def _preference(cell: Measurement) -> tuple[bool, bool, str]:
    return not is_reference(cell.strategy), cell.execution != "eager", cell.strategy


def _step_cost(cell: Measurement) -> StepCost:
    """Median step, divided in proportion to the phases. Time of phases without compute counts as forward."""
    assert cell.step_seconds is not None
    total = sum(cell.phases.values())
    step = cell.step_seconds.median
    seconds = {phase: cell.phases.get(phase, 0.0) / total * step for phase in COMPUTING} if total else {}
    own = sum(seconds.values())
    return StepCost(
        batch=cell.batch,
        load=seconds.get("load", 0.0),
        forward=seconds.get("forward", 0.0) + seconds.get("loss", 0.0) + max(0.0, step - own),
        backward=seconds.get("backward", 0.0),
        update=seconds.get("update", 0.0),
        step_seconds=step,
        peak_memory_bytes=cell.peak_memory_bytes,
    )


def _profile_key(cell: Measurement) -> tuple[object, ...]:
    """Cells with equal keys share a profile."""
    return cell.workload, cell.device_kind, cell.precision, cell.optimizer, cell.environment


FACTOR = 50.0
"""Largest factor between the initial and the fitted bandwidth, in either direction."""
GOLDEN = (math.sqrt(5) - 1) / 2
PRECISION = 3e-3


@dataclass(frozen=True)
class Fit:
    """A cluster with a link fitted to measurements."""

    cluster: Cluster
    GBps: float
    error_percent: float
    """Root mean square of the relative errors of the cells."""


def fit_link(
    cluster: Cluster,
    between: Between,
    predicted: Sequence[Callable[[Cluster], float]],
    measured: Sequence[float],
) -> Fit:
    """Find the bandwidth of a link with which predictions are closest to measurements.

    Args:
        predicted: for each cell, a function that predicts its seconds on a cluster.
        measured: measured seconds of the cells.
    """
    if not measured:
        raise UserError("there is no measured cell to fit a link to", "measure at least one cell on two devices")
    reference = cluster.link(between)
    if reference is None:
        raise UserError(f"{cluster.name} has no link between {between} to fit")

    def error(log_GBps: float) -> float:
        candidate = scaled(cluster, between, math.exp(log_GBps) / reference.GBps)
        errors = [math.log(cell(candidate) / value) for cell, value in zip(predicted, measured, strict=True)]
        return math.sqrt(sum(error * error for error in errors) / len(errors))

    start = math.log(reference.GBps)
    best = _minimum(error, start - math.log(FACTOR), start + math.log(FACTOR))
    GBps = math.exp(best)
    return Fit(scaled(cluster, between, GBps / reference.GBps), GBps, 100 * math.expm1(error(best)))


def scaled(cluster: Cluster, between: Between, factor: float) -> Cluster:
    """Cluster whose links of one kind are `factor` times as fast.

    Scales the bandwidth of the links, that of collectives measured over them, and the copy speed of cores that move
    the bytes themselves.
    """

    def crosses(measured: Measured) -> bool:
        return between == ("devices" if measured.hosts == 1 else "hosts")

    return replace(
        cluster,
        links=tuple(faster(link, factor) if link.between == between else link for link in cluster.links),
        measured=tuple(
            replace(entry, GBps=entry.GBps * factor, latency_us=entry.latency_us / factor) if crosses(entry) else entry
            for entry in cluster.measured
        ),
        devices=tuple(
            replace(device, copy_GBps=device.copy_GBps * factor)
            if device.copy_GBps is not None and between == "devices"
            else device
            for device in cluster.devices
        ),
        knowledge="fitted",
    )


def fit_cells(cluster: Cluster, cells: Sequence[TimedCell]) -> Cluster:
    return calibrate_cells(cluster, cells).cluster


def calibrate_cells(cluster: Cluster, cells: Sequence[TimedCell]) -> LinkCalibration:
    """Calibrate the links that the cells cross.

    Links between emulated hosts have a known bandwidth and are not fitted.
    """
    fitting = [cell for cell in cells if cell.cell.hosts == 1 or cell.is_across]
    if not fitting:
        raise UserError("there is no measured cell to fit a link to", "measure at least one cell on two devices")
    return calibrate_links(cluster, [_measured_step(cell) for cell in fitting])


def _measured_step(timed: TimedCell) -> MeasuredStep:
    cell, costs = timed.cell, Costs(timed.profile)

    def predicted(cluster: Cluster) -> float:
        predictor = Predictor(timed.profile, timed.place_on(cluster))
        return predictor.simulate(timed.strategy, cell.devices, cell.batch).step_seconds

    if timed.strategy.in_stages:
        linear = costs.compute_seconds(cell.batch) / cell.devices
    else:
        linear = costs.compute_seconds(-(-cell.batch // cell.devices))
    name = f"{cell.workload} {cell.strategy} on {cell.devices} devices, batch {cell.batch}"
    return MeasuredStep(name, timed.seconds, linear, predicted, cell.workload)


def _minimum(error: Callable[[float], float], low: float, high: float) -> float:
    """Position of the minimum by golden-section search.

    Predicted seconds fall as bandwidth grows, so the error has a single minimum.
    """
    inner, outer = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_inner, at_outer = error(inner), error(outer)
    while high - low > PRECISION:
        if at_inner <= at_outer:
            high, outer, at_outer = outer, inner, at_inner
            inner = high - GOLDEN * (high - low)
            at_inner = error(inner)
        else:
            low, inner, at_inner = inner, outer, at_outer
            outer = low + GOLDEN * (high - low)
            at_outer = error(outer)
    return (low + high) / 2


CPU_GBps, CPU_LATENCY_us = 1.0, 100.0
"""Sockets between CPU cores: initial bandwidth of a fit, and a latency that is not fitted."""
MEMORY_GBps = 4.0
"""Copying in memory by one core."""
GPU_GBps, GPU_LATENCY_us = 10.0, 15.0
"""Links between GPUs: initial bandwidth of a fit, and a latency that is not fitted."""


def skeleton(environment: Environment, device_kind: str, devices: int) -> Cluster:
    """Cluster of the measured devices, before links are fitted: from the catalogue if it has these GPUs."""
    if device_kind == "cpu":
        cpu = environment.hardware.get("cpu", "this machine")
        name = f"one core of {cpu}"
        memory_GB = environment.hardware.get("memory_bytes", 8e9) / 1e9 / devices
        device = Device(name, devices, memory_GB, 0.05, 10.0, 0.0, copy_GBps=CPU_GBps)
        box = _box(device, "gloo", Link("devices", "sockets", CPU_GBps, CPU_LATENCY_us), MEMORY_GBps)
        return replace(box, name=name if devices == 1 else f"{devices} cores of {cpu}")
    gpus = environment.hardware.get("gpus") or ["GPU"]
    if device_kind == "cuda":
        for box in catalogue().values():
            if box.devices[0].name in gpus[0] and box.devices_per_host >= devices:
                return replace(box, measured=())
    device = Device(gpus[0], devices, 1e6, 10.0, 1000.0, 5.0)
    backend = "nccl" if device_kind == "cuda" else "gloo"
    return _box(device, backend, Link("devices", backend, GPU_GBps, GPU_LATENCY_us), GPU_GBps)


def _box(device: Device, backend: str, link: Link, memory_GBps: float) -> Cluster:
    return Cluster(
        name=f"{device.count} x {device.name}",
        hosts=1,
        devices_per_host=device.count,
        devices=(device,),
        links=(link, Link("host-device", "memory", memory_GBps, 0.0)),
        backend=backend,  # type: ignore[arg-type]
        knowledge="fitted",
    )
