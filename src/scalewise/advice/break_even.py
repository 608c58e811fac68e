"""The batch and the bandwidth from which several devices are faster than one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scalewise.advice.rows import one_device_seconds
from scalewise.clusters.cluster import Cluster
from scalewise.prediction.predict import Predictor
from scalewise.simulation.layout import packed
from scalewise.strategies.strategy import Strategy

FASTEST_GBps = 10_000.0
SLOWEST_GBps = 1e-3
LARGEST_BATCH = 2**24
PRECISION = 1.01
"""Bandwidths closer than this are one."""


@dataclass(frozen=True)
class BreakEven:
    """None where no batch, or no bandwidth, would do it."""

    batch: int | None
    """Of all devices together."""
    bandwidth_GBps: float | None


def break_even(predictor: Predictor, strategy: Strategy, devices: int, batch: int, shares: int = 1) -> BreakEven:
    """One device, which is compared with them, takes the batch in so many shares."""
    return BreakEven(
        _batch(predictor, strategy, devices, shares), _bandwidth(predictor, strategy, devices, batch, shares)
    )


def _faster(predictor: Predictor, strategy: Strategy, devices: int, batch: int, shares: int) -> bool:
    spread = predictor.simulate(strategy, devices, batch).step_seconds
    return spread < one_device_seconds(predictor, batch, shares)


def _batch(predictor: Predictor, strategy: Strategy, devices: int, shares: int) -> int | None:
    """The smallest one from which on they are faster, as far as a device's memory reaches."""
    tried = devices
    while not _faster(predictor, strategy, devices, tried, shares):
        tried *= 2
        if tried > LARGEST_BATCH or not predictor.predict(strategy, devices, tried, samples=tried).fits:
            return None
    low, high = (tried // 2 if tried > devices else 0), tried
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _faster(predictor, strategy, devices, middle, shares) else (middle, high)
    return high


def _bandwidth(predictor: Predictor, strategy: Strategy, devices: int, batch: int, shares: int) -> float | None:
    """Of the slowest link that is crossed: between hosts where there are several, else inside one."""
    profile, cluster = predictor.profile, predictor.cluster
    between = "hosts" if packed(cluster, devices).hosts > 1 else "devices"

    def faster(GBps: float) -> bool:
        return _faster(Predictor(profile, _with(cluster, between, GBps)), strategy, devices, batch, shares)

    if not faster(FASTEST_GBps):
        return None
    low, high = SLOWEST_GBps, FASTEST_GBps
    while high / low > PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if faster(middle) else (middle, high)
    return high


def _with(cluster: Cluster, between: str, GBps: float) -> Cluster:
    """Inside a host all of its links: to other devices and to memory."""
    kinds = ("hosts",) if between == "hosts" else ("devices", "host-device")
    links = tuple(replace(link, GBps=GBps) if link.between in kinds else link for link in cluster.links)
    return replace(cluster, links=links, measured=())
