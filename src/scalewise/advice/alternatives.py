"""Predict what would change a verdict: break-even points, other strategies, batches and options."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from scalewise.advice.rows import Row, is_placeable, one_device_seconds, seconds_if_it_fits
from scalewise.core.errors import UserError
from scalewise.hardware.cluster import Cluster
from scalewise.predict.network import packed
from scalewise.predict.predictor import Prediction, Predictor
from scalewise.strategies.base import Strategy
from scalewise.strategies.registry import REFERENCE, STRATEGIES, strategy_text

MIN_SPEEDUP = 1.05
"""Least speedup that is worth a change."""
FASTEST_GBps = 10_000.0
SLOWEST_GBps = 1e-3
LARGEST_BATCH = 2**24
PRECISION = 1.01
"""Ratio of two bandwidths at which the search for the break-even bandwidth stops."""


@dataclass(frozen=True)
class BreakEven:
    """Batch and bandwidth from which several devices are faster than one; None if there is none."""

    batch: int | None
    """Global batch."""
    bandwidth_GBps: float | None


def break_even(predictor: Predictor, strategy: Strategy, devices: int, batch: int, shares: int = 1) -> BreakEven:
    """Find the break-even points of a strategy; one device processes the batch in `shares` parts."""
    return BreakEven(
        _batch(predictor, strategy, devices, shares), _bandwidth(predictor, strategy, devices, batch, shares)
    )


def _faster(predictor: Predictor, strategy: Strategy, devices: int, batch: int, shares: int) -> bool:
    """Return whether several devices are faster than one; False for a batch that the strategy refuses."""
    try:
        seconds = predictor.simulate(strategy, devices, batch).step_seconds
    except UserError:
        return False
    return seconds < one_device_seconds(predictor, batch, shares)


def _is_too_large(predictor: Predictor, strategy: Strategy, devices: int, batch: int) -> bool:
    """Return whether the batch exceeds a device's memory.

    A batch that the strategy refuses is not too large: a larger one may be possible.
    """
    try:
        if predictor.fits(strategy, devices, batch):
            return False
        predictor.simulate(strategy, devices, batch)
        return True
    except UserError:
        return False


def _batch(predictor: Predictor, strategy: Strategy, devices: int, shares: int) -> int | None:
    """Find the smallest batch from which several devices are faster; None if it exceeds a device's memory."""
    batch = devices
    while not _faster(predictor, strategy, devices, batch, shares):
        batch *= 2
        if batch > LARGEST_BATCH or _is_too_large(predictor, strategy, devices, batch):
            return None
    low, high = (batch // 2 if batch > devices else 0), batch
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _faster(predictor, strategy, devices, middle, shares) else (middle, high)
    return high


def _bandwidth(predictor: Predictor, strategy: Strategy, devices: int, batch: int, shares: int) -> float | None:
    """Find the least bandwidth with which several devices are faster: between hosts if there are several, else
    inside the host."""
    profile, cluster = predictor.profile, predictor.cluster
    between = "hosts" if packed(cluster, devices).hosts > 1 else "devices"

    def faster(GBps: float) -> bool:
        return _faster(Predictor(profile, _with_bandwidth(cluster, between, GBps)), strategy, devices, batch, shares)

    if not faster(FASTEST_GBps):
        return None
    low, high = SLOWEST_GBps, FASTEST_GBps
    while high / low > PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if faster(middle) else (middle, high)
    return high


def _with_bandwidth(cluster: Cluster, between: str, GBps: float) -> Cluster:
    """Return the cluster with another bandwidth between hosts, or on all links inside a host."""
    kinds = ("hosts",) if between == "hosts" else ("devices", "host-device")
    links = tuple(replace(link, GBps=GBps) if link.between in kinds else link for link in cluster.links)
    return replace(cluster, links=links, measured=())


WORKERS = 4
WORKERS_OPTION = f"--load stream:workers={WORKERS}"
MIN_LOADING = 0.05
"""Least share of data loading in a step for which loading workers are considered."""


def seconds_with_workers(predictor: Predictor, prediction: Prediction) -> float | None:
    """Return the seconds of a step with WORKERS loading workers per device.

    None if loading takes next to no time, or if the devices are CPU cores, which are busy already.
    """
    loading = prediction.phases.get("load", 0.0)
    if loading < MIN_LOADING * prediction.seconds or not predictor.cluster.has_gpus:
        return None
    steps = tuple(step.model_copy(update={"load": 0.0}) for step in predictor.profile.steps)
    without_loading = Predictor(predictor.profile.model_copy(update={"steps": steps}), predictor.cluster)
    return max(
        without_loading.simulate(prediction.strategy, prediction.devices, prediction.batch).step_seconds,
        loading / WORKERS,
    )


TRAJECTORY = "changes the training trajectory"
LARGER = 4
"""Factor of the larger batch, and number of batches whose gradients are accumulated."""


@dataclass(frozen=True)
class Change:
    """A change that fits in memory, with its predicted step time."""

    change: str
    speedup: float | None
    """Speedup over one device at the same batch; None if that batch does not fit one device."""
    seconds: float
    """Seconds of a step; with a larger batch, scaled to the samples of the original one."""
    exact: bool = True
    """Whether the weights would equal those of single-device training."""
    strategy: str = ""
    """Strategy that is not in the table, if the change is to use one."""

    def to_json(self) -> dict[str, Any]:
        return {"change": self.change, "speedup": self.speedup, "step_seconds": self.seconds, "exact": self.exact}


def changes_of(predictor: Predictor, alone: Row, several: Row, predicted: set[str]) -> tuple[Change, ...]:
    """Predict changes, the fastest first. `predicted`: names of the strategies in the table."""
    prediction = several.prediction
    one: float | None = None
    if alone.prediction.fits:
        one = alone.prediction.seconds * prediction.batch / alone.prediction.batch  # differ in weak scaling
    changes = [
        *_other_strategies(predictor, prediction, one, predicted),
        *_variants(predictor, prediction, one),
        *_larger_batch(predictor, several, one),
        *_accumulated(prediction, alone.prediction),
        *_loading_workers(predictor, alone.prediction, prediction, one),
    ]
    return tuple(sorted(changes, key=lambda change: (-(change.speedup or 0.0), change.seconds)))


def _other_strategies(
    predictor: Predictor, prediction: Prediction, one: float | None, predicted: set[str]
) -> Iterator[Change]:
    """Yield the fastest exact strategy that is not in the table, if it is faster."""
    least = prediction.seconds if prediction.fits else math.inf
    best = ""
    for name, kind in STRATEGIES.items():
        strategy: Strategy = kind()
        is_new = strategy.exact and not {name, strategy.twin(prediction.devices)} & {*predicted, REFERENCE.name}
        is_possible = is_new and is_placeable(strategy, predictor.cluster, prediction.devices)
        seconds = (
            seconds_if_possible(predictor, strategy, prediction.devices, prediction.batch) if is_possible else None
        )
        if seconds is not None and seconds < least:
            least, best = seconds, strategy_text(strategy)
    if best:
        yield Change(f"use the strategy {best}", _speedup(one, least), least, strategy=best)


def _variants(predictor: Predictor, prediction: Prediction, one: float | None) -> Iterator[Change]:
    for change, strategy in [variant for kind in STRATEGIES.values() for variant in kind().variants()]:
        seconds = seconds_if_possible(predictor, strategy, prediction.devices, prediction.batch)
        if seconds is not None:
            yield Change(change, _speedup(one, seconds), seconds, strategy.exact)


def _larger_batch(predictor: Predictor, several: Row, one: float | None) -> Iterator[Change]:
    """Yield a larger batch, compared with one device at that batch, or at its own if the larger one does not fit."""
    prediction = several.prediction
    batch = LARGER * prediction.batch
    larger = seconds_if_possible(predictor, prediction.strategy, prediction.devices, batch)
    if larger is None:
        return
    share = -(-batch // several.shares)
    baseline = ""
    single: float | None = None
    if predictor.fits(REFERENCE, 1, share):
        single = one_device_seconds(predictor, batch, several.shares)
        baseline = "; compared with one device at that batch"
    elif one is not None:
        single = LARGER * one
        smaller = f"one device at batch {share // LARGER:,}"
        baseline = f"; compared with {smaller}, because {share:,} samples do not fit in its memory"
    change = f"{share:,} samples per device" if several.weak_scaling else f"a batch of {batch:,}"
    yield Change(f"{change} ({TRAJECTORY}{baseline})", _speedup(single, larger), larger / LARGER, exact=False)


def _accumulated(prediction: Prediction, alone: Prediction) -> Iterator[Change]:
    """Yield gradient accumulation, which communicates and updates once for LARGER batches, also on one device."""
    if not prediction.fits:
        return
    seconds = _accumulated_seconds(prediction)
    single = _accumulated_seconds(alone) * prediction.batch / alone.batch if alone.fits else None
    baseline = "; compared with one device that accumulates" if single else ""
    change = (
        f"accumulate gradients over {LARGER} batches (like a batch of {LARGER * prediction.batch:,}; "
        f"{TRAJECTORY}{baseline})"
    )
    yield Change(change, _speedup(single, seconds), seconds, exact=False)


def _accumulated_seconds(prediction: Prediction) -> float:
    """Seconds per batch if gradients of LARGER batches are accumulated."""
    computing = sum(prediction.phases.get(phase, 0.0) for phase in ("load", "forward", "loss", "backward"))
    return (prediction.seconds + (LARGER - 1) * computing) / LARGER


def _loading_workers(
    predictor: Predictor, alone: Prediction, prediction: Prediction, one: float | None
) -> Iterator[Change]:
    """Yield loading workers for one device and for several."""
    single, parallel = (
        seconds_with_workers(predictor, candidate) if candidate.fits else None for candidate in (alone, prediction)
    )
    if single is not None:
        seconds = single * prediction.batch / alone.batch
        yield Change(f"{WORKERS} loading workers on one device ({WORKERS_OPTION})", _speedup(one, seconds), seconds)
    if parallel is not None:
        baseline = f"; {seconds / parallel:.2f} times as fast as one device with them" if single is not None else ""
        change = f"{WORKERS} loading workers on each of {prediction.devices} devices ({WORKERS_OPTION}{baseline})"
        yield Change(change, _speedup(one, parallel), parallel)


def _speedup(one: float | None, seconds: float) -> float | None:
    return None if one is None else one / seconds


def seconds_if_possible(predictor: Predictor, strategy: Strategy, devices: int, batch: int) -> float | None:
    """Return the seconds of a step; None if the strategy is impossible or does not fit in memory."""
    try:
        return seconds_if_it_fits(predictor, strategy, devices, batch)
    except UserError:
        return None
