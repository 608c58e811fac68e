"""A link's bandwidth from a few measured cells, down to a single one on two devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalewise.clusters.cluster import Between, Cluster
from scalewise.errors import UserError

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
        tried = cluster.with_link(between, math.exp(log_GBps))
        errors = [math.log(cell(tried) / value) for cell, value in zip(predicted, measured, strict=True)]
        return math.sqrt(sum(each * each for each in errors) / len(errors))

    start = math.log(reference.GBps)
    best = _minimum(error, start - math.log(FACTOR), start + math.log(FACTOR))
    return Fit(cluster.with_link(between, math.exp(best)), math.exp(best), 100 * math.expm1(error(best)))


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
