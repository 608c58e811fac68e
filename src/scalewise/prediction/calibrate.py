"""A link's bandwidth from a few measured cells, down to a single one on two devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scalewise.clusters.cluster import Between, Cluster, Measured
from scalewise.errors import UserError
from scalewise.prediction.cells import TimedCell
from scalewise.prediction.predict import Predictor

FACTOR = 50.0
"""How far off the bandwidth to start from may be, either way."""
GOLDEN = (math.sqrt(5) - 1) / 2
PRECISION = 3e-3


@dataclass(frozen=True)
class Fit:
    """A cluster whose link explains what was measured, and how well it does."""

    cluster: Cluster
    GBps: float
    error_percent: float
    """Root mean square over the cells."""


def fit_link(
    cluster: Cluster,
    between: Between,
    predicted: Sequence[Callable[[Cluster], float]],
    measured: Sequence[float],
) -> Fit:
    """The bandwidth with which predictions come closest, by the ratio; `predicted` are the cells on a cluster."""
    if not measured:
        raise UserError("no measured cell to fit a link from; one on two devices is enough")
    reference = cluster.link(between)
    if reference is None:
        raise UserError(f"{cluster.name} has no link between {between} to fit")

    def error(log_GBps: float) -> float:
        tried = scaled(cluster, between, math.exp(log_GBps) / reference.GBps)
        errors = [math.log(cell(tried) / value) for cell, value in zip(predicted, measured, strict=True)]
        return math.sqrt(sum(each * each for each in errors) / len(errors))

    start = math.log(reference.GBps)
    best = _minimum(error, start - math.log(FACTOR), start + math.log(FACTOR))
    GBps = math.exp(best)
    return Fit(scaled(cluster, between, GBps / reference.GBps), GBps, 100 * math.expm1(error(best)))


def scaled(cluster: Cluster, between: Between, factor: float) -> Cluster:
    """All that is known of a kind of link, so many times as fast: its own bandwidth, that of the operations measured
    over it, and what a core that moves its bytes itself gets done."""

    def crosses(measured: Measured) -> bool:
        return between == ("devices" if measured.hosts == 1 else "hosts")

    return replace(
        cluster,
        links=tuple(
            replace(link, GBps=link.GBps * factor, source="fitted") if link.between == between else link
            for link in cluster.links
        ),
        measured=tuple(
            replace(each, GBps=each.GBps * factor, latency_us=each.latency_us / factor) if crosses(each) else each
            for each in cluster.measured
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
    """Links inside a host from cells on one, those between hosts from cells on several; what a rehearsed link carries
    needs no fit."""
    within, across = [cell for cell in cells if cell.cell.hosts == 1], [cell for cell in cells if cell.is_across]
    if not within and not across:
        raise UserError("no measured cell to fit a link from; one on two devices is enough")
    if within:
        cluster = fit_link(cluster, "devices", [_predicted(cell) for cell in within], _seconds(within)).cluster
    if across:
        cluster = fit_link(cluster, "hosts", [_predicted(cell) for cell in across], _seconds(across)).cluster
    return cluster


def _seconds(cells: Sequence[TimedCell]) -> list[float]:
    return [cell.seconds for cell in cells]


def _predicted(timed: TimedCell) -> Callable[[Cluster], float]:
    def seconds(cluster: Cluster) -> float:
        predictor = Predictor(timed.profile, timed.place_on(cluster))
        return predictor.simulate(timed.strategy, timed.cell.devices, timed.cell.batch).step_seconds

    return seconds


def _minimum(error: Callable[[float], float], low: float, high: float) -> float:
    """Golden sections: seconds fall as bandwidth grows, so the error has one valley (flat at its ends)."""
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
