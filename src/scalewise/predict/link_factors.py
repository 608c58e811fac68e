"""Calibrate the links of a cluster to measured steps: one factor for each class of links that the steps cross.

The factors have a prior: the catalogue, which is rarely wrong by more than a factor of two. A step that loses little
to communication says little about bandwidth, so it counts little. Classes that no step crosses keep the catalogue's
bandwidth.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from scalewise.hardware.cluster import Cluster, Link, Measured

HOST = "host"
"""Class of the hosts' Python code, on which torch.nn.DataParallel depends."""
PRIOR = {"devices": 0.5, "hosts": 0.6, "host-device": 0.4, HOST: 0.25}
"""Standard deviation of the logarithm of the factor of each class before anything is measured."""
UNKNOWN_PRIOR = 3.0
"""Standard deviation of the logarithm of the factor of links that are not from the catalogue."""
STEP_ERROR = 0.04
"""Relative standard deviation of a step's prediction with exact bandwidths."""
SAYS_NOTHING, SAYS_ALL = 0.03, 0.10
"""Scaling losses up to which a step says nothing about bandwidth, and from which it counts in full."""
LEAST_WEIGHT = 0.01
OUTLIER = 2.0
"""Residual, in standard deviations, from which a step counts less."""
ALIKE = 0.5
"""Correlation of the errors of two steps of one model."""
CROSSED = 1e-4
"""Smallest change of the logarithm of a step's seconds, for a factor of `TRIAL`, that counts as crossing a class."""
TRIAL = 0.2
ROUNDS = 12
LARGEST_MOVE = 0.7
"""Largest change of the logarithm of a factor in one round."""
LEARNED = 0.5
"""Links count as fitted if a factor's standard deviation is below this share of its prior."""
NORMAL_90 = 1.645


@dataclass(frozen=True)
class MeasuredStep:
    """A measured step on several devices, and the function that predicts it on a cluster."""

    name: str
    seconds: float
    linear_seconds: float
    """Seconds with linear scaling, from one device."""
    predicted: Callable[[Cluster], float]
    model: str = ""
    """Model of the step. Steps of one model have similar errors, so each further one counts less."""

    @property
    def loss(self) -> float:
        """Part of the step that is lost to communication and waiting."""
        return 1 - self.linear_seconds / self.seconds

    @property
    def weight(self) -> float:
        share = (self.loss - SAYS_NOTHING) / (SAYS_ALL - SAYS_NOTHING)
        return max(LEAST_WEIGHT, min(1.0, share)) ** 2 if share > 0 else LEAST_WEIGHT**2


@dataclass(frozen=True)
class LinkFactor:
    """Fitted factor of one class of links, with its 90 % interval."""

    link_class: str
    factor: float
    low: float
    high: float
    steps: int
    """Number of measured steps that cross the class."""


@dataclass(frozen=True)
class StepResidual:
    """A measured step and its predictions before and after calibration."""

    name: str
    measured: float
    before: float
    after: float
    informative: bool
    """Whether the step loses enough of linear scaling to say something about bandwidth."""

    @property
    def residual_percent(self) -> float:
        return 100 * (self.after / self.measured - 1)


@dataclass(frozen=True)
class LinkCalibration:
    cluster: Cluster
    factors: tuple[LinkFactor, ...]
    residuals: tuple[StepResidual, ...]

    @property
    def lines(self) -> list[str]:
        """Description of the factors and of every step's residual."""
        lines = [
            f"{factor.link_class}: {factor.factor:.2f} times as fast as in the cluster (90 % interval {factor.low:.2f} "
            f"to {factor.high:.2f}, from {factor.steps} step{'s' if factor.steps > 1 else ''})"
            for factor in self.factors
        ]
        for row in self.residuals:
            note = "" if row.informative else "; loses too little to tell anything about bandwidth"
            lines.append(
                f"{row.name}: measured {1e3 * row.measured:.4g} ms, predicted {1e3 * row.after:.4g} ms "
                f"({row.residual_percent:+.1f} %; before calibration {1e3 * row.before:.4g} ms{note})"
            )
        return lines


def class_of(link: Link) -> str:
    return f"{link.between}: {link.kind}"


def calibrate_links(cluster: Cluster, steps: Sequence[MeasuredStep]) -> LinkCalibration:
    """Estimate one factor for each class that the steps cross: the most probable values given prior and steps."""
    before = [step.predicted(cluster) for step in steps]
    classes = list(dict.fromkeys([*(class_of(link) for link in cluster.links), HOST]))
    crossing = {name: _sensitivities(cluster, steps, before, name) for name in classes}
    crossed = [name for name in classes if any(crossing[name])]
    priors = {name: _prior(cluster, name) for name in crossed}
    logs = dict.fromkeys(crossed, 0.0)
    variances = {name: priors[name] ** 2 for name in crossed}
    predicted = before
    for _ in range(ROUNDS if crossed else 0):
        base = with_factors(cluster, logs)
        slopes = [_sensitivities(base, steps, predicted, name) for name in crossed]
        moves, variances = _solve(steps, predicted, slopes, logs, priors)
        moves = {name: max(-LARGEST_MOVE, min(LARGEST_MOVE, move)) for name, move in moves.items()}
        logs = {name: logs[name] + moves[name] for name in crossed}
        predicted = [step.predicted(with_factors(cluster, logs)) for step in steps]
        if all(abs(move) < 0.005 for move in moves.values()):
            break
    # A factor counts as far as the steps narrowed it down, because errors of predictions are not independent.
    logs = {name: value * (1 - variances[name] / priors[name] ** 2) for name, value in logs.items()}
    predicted = [step.predicted(with_factors(cluster, logs)) for step in steps]
    factors = [
        LinkFactor(
            name,
            math.exp(logs[name]),
            math.exp(logs[name] - NORMAL_90 * math.sqrt(variances[name])),
            math.exp(logs[name] + NORMAL_90 * math.sqrt(variances[name])),
            sum(map(bool, crossing[name])),
        )
        for name in crossed
    ]
    learned = any(variances[name] < (LEARNED * priors[name]) ** 2 for name in crossed if name != HOST)
    fitted = with_factors(cluster, logs)
    return LinkCalibration(
        replace(fitted, knowledge="fitted") if learned else fitted,
        tuple(factors),
        tuple(
            StepResidual(step.name, step.seconds, early, late, step.loss > SAYS_NOTHING)
            for step, early, late in zip(steps, before, predicted, strict=True)
        ),
    )


def _prior(cluster: Cluster, name: str) -> float:
    if cluster.knowledge == "fitted" and name != HOST:
        return UNKNOWN_PRIOR
    known = [link.known_within for link in cluster.links if class_of(link) == name and link.known_within]
    return min(known) if known else PRIOR[name.partition(":")[0]]


def _sensitivities(
    cluster: Cluster, steps: Sequence[MeasuredStep], predicted: Sequence[float], name: str
) -> list[float]:
    """Change of the logarithm of every step's seconds per change of the logarithm of a factor."""
    tried = with_factors(cluster, {name: TRIAL})
    changes = [math.log(step.predicted(tried) / now) for step, now in zip(steps, predicted, strict=True)]
    return [change / TRIAL if abs(change) > CROSSED else 0.0 for change in changes]


def _solve(
    steps: Sequence[MeasuredStep],
    predicted: Sequence[float],
    slopes: Sequence[Sequence[float]],
    logs: Mapping[str, float],
    priors: Mapping[str, float],
) -> tuple[dict[str, float], dict[str, float]]:
    """One round of weighted least squares: changes of the factors, and the variances of the factors."""
    names = list(logs)
    residuals = [math.log(step.seconds / now) for step, now in zip(steps, predicted, strict=True)]
    spread = max(STEP_ERROR, median(map(abs, residuals)) * 1.48 if len(residuals) > 4 else 0.0)
    per_model = Counter(step.model or step.name for step in steps)
    weights = []
    for step, residual in zip(steps, residuals, strict=True):
        off = abs(residual) / spread / OUTLIER
        alike = 1 + ALIKE * (per_model[step.model or step.name] - 1)
        weights.append(step.weight / alike / spread**2 / (1 + off**2 if len(steps) > 1 else 1.0))
    matrix = [
        [sum(w * a * b for w, a, b in zip(weights, row, column, strict=True)) for column in slopes] for row in slopes
    ]
    target = [sum(w * a * r for w, a, r in zip(weights, row, residuals, strict=True)) for row in slopes]
    for at, name in enumerate(names):
        matrix[at][at] += priors[name] ** -2
        target[at] -= logs[name] * priors[name] ** -2
    inverse = _inverse(matrix)
    moves = {
        name: sum(value * part for value, part in zip(inverse[at], target, strict=True))
        for at, name in enumerate(names)
    }
    # Residuals larger than expected make the factors less certain.
    unexplained = sum(w * r * r for w, r in zip(weights, residuals, strict=True)) / max(1, len(steps) - len(names))
    return moves, {
        name: min(inverse[at][at] * max(1.0, unexplained), priors[name] ** 2) for at, name in enumerate(names)
    }


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Inverse of a small positive definite matrix, by Gauss-Jordan elimination."""
    size = len(matrix)
    rows = [[*row, *(1.0 if at == column else 0.0 for column in range(size))] for at, row in enumerate(matrix)]
    for at in range(size):
        pivot = rows[at][at]
        rows[at] = [value / pivot for value in rows[at]]
        for other in range(size):
            if other != at:
                scale = rows[other][at]
                rows[other] = [value - scale * own for value, own in zip(rows[other], rows[at], strict=True)]
    return [row[size:] for row in rows]


def faster(link: Link, factor: float) -> Link:
    """Link whose bandwidths are `factor` times as large."""
    return replace(
        link,
        GBps=link.GBps * factor,
        both_ways_GBps=link.both_ways_GBps * factor if link.both_ways_GBps else None,
        host_GBps=link.host_GBps * factor if link.host_GBps else None,
        source="fitted",
    )


def with_factors(cluster: Cluster, logs: Mapping[str, float]) -> Cluster:
    """Cluster whose links, by class, are faster by exp of the given values. A faster host takes less time."""
    factors = {name: math.exp(value) for name, value in logs.items()}

    def link(link: Link) -> Link:
        factor = factors.get(class_of(link), 1.0)
        return link if factor == 1.0 else faster(link, factor)

    def measured(entry: Measured) -> Measured:
        factor = factors.get(_class_of_measured(cluster, entry), 1.0)
        return replace(entry, GBps=entry.GBps * factor, latency_us=entry.latency_us / factor)

    whole = cluster.link("devices")
    copies = factors.get(class_of(whole), 1.0) if whole else 1.0
    return replace(
        cluster,
        links=tuple(map(link, cluster.links)),
        measured=tuple(map(measured, cluster.measured)),
        devices=tuple(
            replace(device, copy_GBps=device.copy_GBps * copies) if device.copy_GBps else device
            for device in cluster.devices
        ),
        host_factor=cluster.host_factor / factors.get(HOST, 1.0),
    )


def _class_of_measured(cluster: Cluster, entry: Measured) -> str:
    """Class of the links that a measured operation crosses: the slowest of its devices' links."""
    link = cluster.link("hosts") if entry.hosts > 1 else cluster.link_between(0, entry.devices - 1)
    return class_of(link) if link else ""
