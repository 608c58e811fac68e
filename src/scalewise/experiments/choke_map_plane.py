"""The plane of model size and compute per sample: who gains from a second device, and where the border runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

STUDIED = {"linear": False, "conv": True}
"""The study's models, and whether they gained from a second device there."""
NEAR_DECADES = 0.5


@dataclass(frozen=True)
class Spot:
    """A model: where it lies and what a second device brought it."""

    parameters: int
    flops: int
    """Per sample, forward."""
    speedup: float
    certain: bool = True
    """Whether the timings are good enough to tell gain from loss."""

    @property
    def flops_per_parameter(self) -> float:
        return self.flops / self.parameters


def border(spots: Sequence[Spot]) -> dict[int, float]:
    """For each model size the flops per sample at which two devices take as long as one, between two spots.

    Sizes at which all spots gain, or all choke, have none.
    """
    found: dict[int, float] = {}
    for parameters in sorted({spot.parameters for spot in spots}):
        column = sorted((spot for spot in spots if spot.parameters == parameters), key=lambda spot: spot.flops)
        for below, above in pairwise(column):
            if below.speedup < 1 <= above.speedup:
                part = -math.log(below.speedup) / (math.log(above.speedup) - math.log(below.speedup))
                found[parameters] = math.exp(
                    math.log(below.flops) + part * (math.log(above.flops) - math.log(below.flops))
                )
    return found


def explained_by_ratio(spots: Sequence[Spot]) -> float:
    """How well flops per parameter alone sorts the spots: the share of pairs of unlike ones that it puts in order."""
    pairs = [
        (gaining, choking) for gaining in spots if gaining.speedup >= 1 for choking in spots if choking.speedup < 1
    ]
    if not pairs:
        return math.nan
    right = sum(
        (gaining.flops_per_parameter > choking.flops_per_parameter)
        + 0.5 * (gaining.flops_per_parameter == choking.flops_per_parameter)
        for gaining, choking in pairs
    )
    return right / len(pairs)


def words(spots: Sequence[Spot], batch: int) -> list[str]:
    """What the map shows, the most important first."""
    told = [spot for spot in spots if spot.certain]
    if not told:
        return [f"of none of {len(spots)} models it can be told whether it gains from a second device: too noisy"]
    gaining = [spot for spot in told if spot.speedup >= 1]
    best, worst = max(told, key=lambda spot: spot.speedup), min(told, key=lambda spot: spot.speedup)
    gain = "gains" if len(gaining) == 1 else "gain"
    found = [
        f"{len(gaining)} of {len(told)} models {gain} from a second device at batch {batch}: from "
        f"{best.speedup:.2f}x ({_model(best)}) down to {worst.speedup:.2f}x ({_model(worst)})"
    ]
    if len(told) < len(spots):
        found[0] += f"; of {len(spots) - len(told)} more it cannot be told"
    spots = told
    crossings = {parameters: flops / parameters for parameters, flops in border(spots).items()}
    if crossings:
        each = ", ".join(
            f"{_ratio(ratio)} at {short(parameters)} parameters" for parameters, ratio in crossings.items()
        )
        found.append(f"a second device pays above so many flops per sample and parameter: {each}")
    share = explained_by_ratio(spots)
    if not math.isnan(share):
        found.append(
            f"the study's rule, compute against model size, puts {share:.0%} of the pairs of a gaining and a "
            "choking model in the right order"
        )
    return found


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def beside_the_study(spots: Sequence[Spot], known: Mapping[str, tuple[int, int]]) -> list[str]:
    """The study's two models by what the nearest synthetic one does: `known` gives parameters and flops per sample."""
    said = []
    for name, gained in STUDIED.items():
        place = known[name]
        nearest = min(spots, key=lambda spot: _decades(spot, place))
        if _decades(nearest, place) > NEAR_DECADES:
            said.append(f"{name} lies beyond the map: no model near it was timed")
            continue
        if not nearest.certain:
            verdict = "too noisy to tell"
        elif (nearest.speedup >= 1) == gained:
            verdict = f"{'gains' if gained else 'chokes'}, as {name} does in the study"
        else:
            verdict = f"{'chokes' if gained else 'gains'}, where {name} {'gains' if gained else 'chokes'} in the study"
        said.append(f"the model nearest to {name} ({_model(nearest)}) is at {nearest.speedup:.2f}x: {verdict}")
    return said


def _decades(spot: Spot, place: tuple[int, int]) -> float:
    """How far a model is from a place, along the axis where that is further."""
    return max(abs(math.log10(spot.parameters / place[0])), abs(math.log10(spot.flops / place[1])))


def _model(spot: Spot) -> str:
    return f"{short(spot.parameters)} parameters, {short(spot.flops)} flops"


def short(value: float) -> str:
    """'12 M', '1.2 G'."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
