"""Models that grow, each under every strategy: where data parallelism no longer fits, or no longer wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from scalewise.experiments.unet_runs import NAMES
from scalewise.published.unet import DATA_PARALLEL, SINGLE

NOT_BEGUN = "not begun"


@dataclass(frozen=True)
class Spot:
    """One growing model under one strategy."""

    workload: str
    parameters: int
    strategy: str
    samples_per_second: float | None
    """None where it did not run."""
    status: str
    planned_bytes: int | None
    """Memory of a device, as is the next."""
    measured_bytes: int | None = None
    reduce_share: float = 0.0
    """Of the step: exchanging gradients, or waiting for that."""


def sweep_words(spots: Sequence[Spot], limit_GB: float) -> list[str]:
    """Where data parallelism no longer fits, or no longer wins."""
    said = []
    for strategy in NAMES:
        own = sorted((spot for spot in spots if spot.strategy == strategy), key=lambda spot: spot.parameters)
        full = [spot for spot in own if spot.status == "oom"]
        ran = [spot for spot in own if spot.samples_per_second]
        over = [each for each in own if each.status == NOT_BEGUN and (each.planned_bytes or 0) > limit_GB * 1e9]
        if full and ran:
            first = full[0]
            planned = f", planned {first.planned_bytes / 1e9:.2f} GB," if first.planned_bytes else ""
            said.append(
                f"{NAMES[strategy].capitalize()} fits {limit_GB:g} GB a device up to {millions(ran[-1])} parameters; "
                f"{millions(first)}{planned} run out of memory."
            )
        elif full:
            said.append(
                f"{NAMES[strategy].capitalize()} fits {limit_GB:g} GB a device with no model that was tried: "
                f"{millions(full[0])} parameters run out of memory."
            )
        elif over and ran:
            planned = f"planned {(over[0].planned_bytes or 0) / 1e9:.2f} GB"
            said.append(
                f"{NAMES[strategy].capitalize()} fits {limit_GB:g} GB a device with {millions(ran[-1])} parameters; "
                f"{millions(over[0])}, {planned}, would not, and were not run."
            )
        elif ran:
            said.append(
                f"{NAMES[strategy].capitalize()} fits {limit_GB:g} GB a device with all models that were measured, up "
                f"to {millions(ran[-1])} parameters."
            )
    return [*said, *_winners(spots)]


def _winners(spots: Sequence[Spot]) -> list[str]:
    """Of the models on which data parallelism was tried, whatever came of it."""
    rivals = {
        spot.workload: spot
        for spot in spots
        if spot.strategy == DATA_PARALLEL and (spot.samples_per_second or spot.status == "oom")
    }
    best: dict[str, Spot] = {}
    for spot in sorted(spots, key=lambda spot: spot.samples_per_second or 0.0):
        if spot.workload in rivals and spot.samples_per_second:
            best[spot.workload] = spot
    ordered = sorted(best.values(), key=lambda spot: spot.parameters)
    divided = [spot for spot in ordered if _divides(spot)]
    if not divided:
        largest = f", up to {millions(ordered[-1])} parameters" if ordered else ""
        return [f"Nothing that divides the model was the quickest anywhere{largest}."] if ordered else []
    last = list(takewhile(_divides, reversed(ordered)))[::-1]
    first = (last or divided)[0]
    names = list(dict.fromkeys(NAMES[spot.strategy] for spot in last)) or [NAMES[first.strategy]]
    where = f"From {millions(first)} parameters on" if len(last) > 1 else f"With {millions(first)} parameters"
    if len(last) == 1 and len(ordered) > 1:
        where += ", the most that was compared,"
    said = f"{where} {', then '.join(names)} is the quickest that runs: {_over(rivals[first.workload], first)}"
    if not last:
        said += f"; with {millions(ordered[-1])} {NAMES[ordered[-1].strategy]} is again"
    return [f"{said}."]


def _divides(spot: Spot) -> bool:
    return spot.strategy not in (SINGLE, DATA_PARALLEL)


def _over(rival: Spot, best: Spot) -> str:
    if not rival.samples_per_second or not best.samples_per_second:
        return "data parallelism no longer fits: by memory, not by speed"
    ahead = best.samples_per_second / rival.samples_per_second
    share = f"{rival.reduce_share:.0%} of its step"
    return f"it is {ahead:.2f}x as fast as data parallelism, which spends {share} on gradients by then"


def millions(spot: Spot) -> str:
    return f"{spot.parameters / 1e6:.3g} M"
