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

    Sizes at which all spots gain, or all choke, have none; nor have those where it runs beside a spot that is too
    noisy to tell.
    """
    found: dict[int, float] = {}
    for parameters in sorted({spot.parameters for spot in spots}):
        column = sorted((spot for spot in spots if spot.parameters == parameters), key=lambda spot: spot.flops)
        for below, above in pairwise(column):
            if below.certain and above.certain and below.speedup < 1 <= above.speedup:
                part = -math.log(below.speedup) / (math.log(above.speedup) - math.log(below.speedup))
                found[parameters] = math.exp(
                    math.log(below.flops) + part * (math.log(above.flops) - math.log(below.flops))
                )
    return found


def border_pieces(spots: Sequence[Spot]) -> list[dict[int, float]]:
    """The border, in pieces of neighbouring sizes that have one: none is drawn across a size that has not."""
    crossings, pieces = border(spots), list[dict[int, float]]()
    joined = False
    for parameters in sorted({spot.parameters for spot in spots}):
        if parameters in crossings:
            if not joined:
                pieces.append({})
            pieces[-1][parameters] = crossings[parameters]
        joined = parameters in crossings
    return pieces


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
    found = [_who_gains(told, batch)]
    if len(told) < len(spots):
        found[0] += f"; of {len(spots) - len(told)} more it cannot be told"
    crossings = {parameters: flops / parameters for parameters, flops in border(spots).items()}
    if crossings:
        each = ", ".join(
            f"{_ratio(ratio)} at {short(parameters)} parameters" for parameters, ratio in crossings.items()
        )
        found.append(f"a second device pays above so many flops per sample and parameter: {each}")
    share = explained_by_ratio(told)
    if not math.isnan(share):
        found.append(
            f"the study's rule, compute against model size, puts {share:.0%} of the pairs of a gaining and a "
            "choking model in the right order"
        )
    return found


def _who_gains(told: Sequence[Spot], batch: int) -> str:
    """'25 of 55 models gain from a second device at batch 8, at best 2.04x (...); 30 choke, at worst 0.15x (...)'."""
    gaining = [spot for spot in told if spot.speedup >= 1]
    choking = len(told) - len(gaining)
    best, worst = max(told, key=lambda spot: spot.speedup), min(told, key=lambda spot: spot.speedup)
    ends = f"at best {best.speedup:.2f}x ({_model(best)})", f"at worst {worst.speedup:.2f}x ({_model(worst)})"
    if not choking:
        return f"all of {len(told)} models gain from a second device at batch {batch}: {ends[0]}, {ends[1]}"
    if not gaining:
        return f"none of {len(told)} models gains from a second device at batch {batch}: {ends[0]}, {ends[1]}"
    gain, choke = ("gains" if len(gaining) == 1 else "gain"), ("chokes" if choking == 1 else "choke")
    return (
        f"{len(gaining)} of {len(told)} models {gain} from a second device at batch {batch}, {ends[0]}; "
        f"{choking} {choke}, {ends[1]}"
    )


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def beside_the_study(
    spots: Sequence[Spot], known: Mapping[str, tuple[int, int]], planned: Sequence[tuple[int, int]] = ()
) -> list[str]:
    """The study's two models by what the nearest synthetic one does: `known` gives parameters and flops per sample,
    as `planned` does of the models that the map is to have."""
    said = []
    for name, gained in STUDIED.items():
        place = known[name]
        nearest = min(spots, key=lambda spot: _decades((spot.parameters, spot.flops), place))
        if _decades((nearest.parameters, nearest.flops), place) > NEAR_DECADES:
            said.append(_why_not(name, place, planned))
            continue
        if not nearest.certain:
            verdict = "too noisy to tell"
        elif (nearest.speedup >= 1) == gained:
            verdict = f"{'gains' if gained else 'chokes'}, as {name} does in the study"
        else:
            verdict = f"{'chokes' if gained else 'gains'}, where {name} {'gains' if gained else 'chokes'} in the study"
        said.append(f"the model nearest to {name} ({_model(nearest)}) is at {nearest.speedup:.2f}x: {verdict}")
    return said


def _why_not(name: str, place: tuple[int, int], planned: Sequence[tuple[int, int]]) -> str:
    near = min(planned, key=lambda each: _decades(each, place), default=None)
    if near is None or _decades(near, place) > NEAR_DECADES:
        return f"{name} lies beyond the map: it has no model near it"
    return f"nothing can be said of {name}: the model nearest to it ({_text(*near)}) has no time yet"


def _decades(one: tuple[int, int], other: tuple[int, int]) -> float:
    """How far two places are from each other, along the axis where that is further."""
    return max(abs(math.log10(here / there)) for here, there in zip(one, other, strict=True))


def _model(spot: Spot) -> str:
    return _text(spot.parameters, spot.flops)


def _text(parameters: int, flops: int) -> str:
    return f"{short(parameters)} parameters, {short(flops)} flops"


def short(value: float) -> str:
    """'12 M', '1.2 G'."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
