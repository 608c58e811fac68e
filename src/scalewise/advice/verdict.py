"""Add devices or not, and why, in plain words with their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scalewise.advice.break_even import BreakEven, SLOWEST_GBps, break_even
from scalewise.advice.changes import Change, changes_of
from scalewise.advice.rows import Row
from scalewise.phases import BETWEEN_DEVICES
from scalewise.prediction.predict import Bottleneck, Predictor
from scalewise.results.units import bytes_text, seconds_text

WORTH = 1.05
"""The least speed-up for which devices are added."""
FEW = 16
"""Devices whose plan tells what a link carries with more."""
WHY = {
    "network": "choked by the network",
    "compute": "bound by compute",
    "launch": "bound by launching work on the device, which more devices do not shorten",
    "input": "bound by loading its samples",
    "memory": "too large for a device's memory",
    "idle": "held up by devices that wait for each other",
}


@dataclass(frozen=True)
class Verdict:
    add_devices: bool
    best: Row
    bottleneck: Bottleneck
    reason: str
    break_even: BreakEven
    changes: tuple[Change, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "add_devices": self.add_devices,
            "best": self.best.to_json(),
            "bottleneck": self.bottleneck,
            "reason": self.reason,
            "break_even": {"batch": self.break_even.batch, "bandwidth_GBps": self.break_even.bandwidth_GBps},
            "changes": [each.to_json() for each in self.changes],
        }


def verdict_of(predictor: Predictor, rows: Sequence[Row]) -> Verdict:
    """Over the rows of one batch, the first of which is one device; only exact strategies are advised."""
    alone = rows[0]
    exact = [row for row in rows[1:] if row.prediction.strategy.exact]
    fitting = [row for row in exact if row.prediction.fits]
    several = _best(fitting or exact or [alone])
    must = not alone.prediction.fits and several.prediction.fits
    add = several is not alone and (must or (several.speedup or 0) > WORTH)
    best = several if add else alone
    if several is alone:
        return Verdict(
            False, alone, alone.prediction.bottleneck, _alone_text(predictor, alone), BreakEven(None, None), ()
        )
    strategy, devices = several.prediction.strategy, several.prediction.devices
    even = break_even(predictor, strategy, devices, several.prediction.batch)
    reason = _add_text(predictor, alone, several) if add else _stay_text(predictor, alone, several)
    changes = changes_of(predictor, alone, several, {row.prediction.strategy.name for row in rows})
    bottleneck = several.prediction.bottleneck
    return Verdict(add, best, bottleneck, f"{reason} {_even_text(even, several)}".strip(), even, changes)


def _best(rows: Sequence[Row]) -> Row:
    """The fastest; what is predicted to gain less than devices must is no reason to leave torch's own way."""
    fastest = min(rows, key=lambda row: row.prediction.epoch_seconds)
    usual = [row for row in rows if row.name == "mirrored" and row.prediction.devices == fastest.prediction.devices]
    near = [row for row in usual if row.prediction.epoch_seconds < WORTH * fastest.prediction.epoch_seconds]
    return near[0] if near else fastest


def _device(predictor: Predictor) -> str:
    return predictor.cluster.devices[0].name


def _alone_text(predictor: Predictor, alone: Row) -> str:
    made = alone.prediction
    return (
        f"{predictor.profile.workload} on one {_device(predictor)}: {seconds_text(made.seconds)} a step, "
        f"{WHY[made.bottleneck]}."
    )


def _moved(predictor: Predictor, row: Row) -> str:
    """'each step moves 92.3 MiB over the busiest link'."""
    made = row.prediction
    inside: int = getattr(made.strategy, "inside", 1)  # groups of a hybrid are kept whole
    few = made.devices if made.devices <= FEW else max(FEW // inside, 1) * inside
    plan = made.strategy.plan(predictor.footprint, few, made.batch, predictor.cluster.backend)
    return f"each step moves {bytes_text(plan.busiest_bytes / 2)} over the busiest link"


def _seconds(row: Row, *phases: str) -> float:
    return sum(seconds for phase, seconds in row.prediction.phases.items() if phase in phases)


def _stay_text(predictor: Predictor, alone: Row, several: Row) -> str:
    made = several.prediction
    name, cluster = predictor.profile.workload, predictor.cluster.name
    network = seconds_text(_seconds(several, *BETWEEN_DEVICES))
    compute = seconds_text(_seconds(several, "forward", "backward", "update", "loss"))
    why = WHY[made.bottleneck]
    spent = (
        f": {_moved(predictor, several)} ({network}) for {compute} of compute" if made.bottleneck == "network" else ""
    )
    return (
        f"Stay on one {_device(predictor)}. At batch {made.batch}, {name} on {cluster} is {why}{spent}. "
        f"The best of several, {several.name} on {made.devices} devices, takes {seconds_text(made.seconds)} a step "
        f"({seconds_text(made.low)} to {seconds_text(made.high)}) where one takes "
        f"{seconds_text(alone.prediction.seconds)}."
    )


def _add_text(predictor: Predictor, alone: Row, several: Row) -> str:
    made = several.prediction
    head = f"Use {several.name} on {made.devices} x {_device(predictor)}"
    if several.speedup is None:
        return f"{head}: {predictor.profile.workload} at batch {made.batch} does not fit into one."
    low, high = (alone.prediction.epoch_seconds / edge for edge in (made.epoch_high, made.epoch_low))
    return (
        f"{head}: at batch {made.batch} an epoch takes {seconds_text(made.epoch_seconds)} where one device takes "
        f"{seconds_text(alone.prediction.epoch_seconds)}: {several.speedup:.2f} times faster "
        f"({low:.2f} to {high:.2f}), {several.speedup / made.devices:.0%} of linear. "
        f"The step is then {WHY[made.bottleneck]}."
    )


def _even_text(even: BreakEven, row: Row) -> str:
    made = row.prediction
    slower = row.speedup is not None and row.speedup < 1
    parts = []
    if slower:
        batch = f"from batch {even.batch:,} on" if even.batch else "at no batch that fits"
        link = f"with links of {even.bandwidth_GBps:.3g} GB/s" if even.bandwidth_GBps else "with no link, however fast"
        parts.append(f"{row.name} on {made.devices} devices would be faster than one {batch}, or {link}.")
    elif even.bandwidth_GBps and even.bandwidth_GBps > 2 * SLOWEST_GBps:
        parts.append(f"Links slower than {even.bandwidth_GBps:.3g} GB/s would undo it.")
    return " ".join(parts)
