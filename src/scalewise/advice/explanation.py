"""Explain a verdict in at most four sentences: what to do, the number, why, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalewise.advice.alternatives import (
    MIN_SPEEDUP,
    WORKERS,
    WORKERS_OPTION,
    BreakEven,
    Change,
    SLOWEST_GBps,
    break_even,
    changes_of,
    seconds_if_possible,
    seconds_with_workers,
)
from scalewise.advice.inputs import counted
from scalewise.advice.rows import Row, interval_text
from scalewise.core.errors import UserError
from scalewise.core.timeline import BETWEEN_DEVICES
from scalewise.core.units import bytes_text, gigabytes_text, seconds_text
from scalewise.predict.network import in_use
from scalewise.predict.predictor import Bottleneck, Prediction, Predictor
from scalewise.strategies.base import batch_shares

MAX_PLANNED_DEVICES = 16
"""Most devices that are planned to count a link's bytes; more devices send about as many over their busiest link."""
MIN_SLOWDOWN = 1.1
"""Ratio of compute during communication to compute alone from which the slowdown is mentioned."""
MIN_EPOCH_LOSS = 1.02
"""Ratio of a full step's speed-up to an epoch's from which a short last batch is mentioned."""
LIMITED_BY = {
    "network": "communication-bound",
    "compute": "compute-bound",
    "launch": "limited by per-operator overhead, which more devices do not shorten",
    "input": "limited by data loading",
    "memory": "too large for the memory of a device",
    "idle": "limited by devices that wait for each other",
}
LIMITED_BY_KERNEL_LAUNCHES = "limited by kernel launches, which more devices do not shorten"
LIMITED_BY_SERVER = "limited by the server, which applies the updates of all workers"
CHOKES = {"network": " (network choke)", "compute": " (GPU choke)"}
"""The study's names for a step that more devices make slower."""
UNCERTAIN = "uncertain: the interval of the speed-up includes 1"


@dataclass(frozen=True)
class Explanation:
    """Sentences that compare one device with several."""

    predictor: Predictor
    alone: Row
    several: Row

    def one_device(self) -> str:
        """Describe one device where no other row was predicted."""
        prediction = self.alone.prediction
        if not prediction.fits:
            return f"{self._workload} {self._at_batch} does not fit {self._devices(1)}, {self._memory(self.alone)}."
        return f"{self._workload} on {self._devices(1)} {self._pace(self.alone)} and is {self._limited_by(self.alone)}."

    def nothing_fits(self, smaller: tuple[int, Row] | None) -> str:
        """Explain that no row fits. `smaller`: a smaller batch that does, and the fastest row with it."""
        prediction = self.several.prediction
        remedy = ""
        available = gigabytes_text(self.predictor.cluster.devices[0].memory_GB * 1e9)
        if smaller:
            batch, row = smaller
            remedy = f"A batch of {batch:,} would fit with {row.name} on {row.prediction.devices} devices."
        return _joined(
            f"Nothing fits: {self._workload} {self._at_batch} needs at least "
            f"{gigabytes_text(prediction.memory_bytes)} on each of {prediction.devices} devices "
            f"({self.several.name}), and {self._devices(1)} has {available}.",
            remedy,
        )

    def stay(self, even: BreakEven, best: bool, other: Change | None = None) -> str:
        """Advise one device.

        `best`: no strategy on several devices is faster than the explained one. `other`: a faster strategy that the
        table does not contain.
        """
        remedy = ""
        if other:
            remedy = (
                f"{other.strategy}, which is not in the table, is predicted to take {seconds_text(other.seconds)} per "
                f"step on {self.several.prediction.devices} devices: {other.speedup:.2f} times as fast as one."
            )
        if not self.several.prediction.fits:
            return _joined(self._stay(), self._does_not_fit_several(), remedy)
        if not remedy:
            remedy = self._short_last_batch() if self._is_uneven else self._when_faster(even)
        return _joined(self._stay(), self._no_faster(best), self._why_no_faster(), remedy)

    def _stay(self) -> str:
        """Return 'Stay on one T4', with loading workers where they shorten its step."""
        seconds = self._seconds_with_workers
        if seconds is None:
            return f"Stay on {self._devices(1)}."
        return (
            f"Stay on {self._devices(1)} and load samples with {WORKERS} workers ({WORKERS_OPTION}): they shorten the "
            f"step from {seconds_text(self.alone.prediction.seconds)} to {seconds_text(seconds)}."
        )

    @property
    def _seconds_with_workers(self) -> float | None:
        """Step time of one device with loading workers, or None if they do not shorten it."""
        alone = self.alone.prediction
        seconds = seconds_with_workers(self.predictor, alone)
        return None if seconds is None or alone.seconds < MIN_SPEEDUP * seconds else seconds

    def _no_faster(self, best: bool) -> str:
        prediction = self.several.prediction
        period = "an epoch" if self._is_uneven else "a step"
        if self._is_uneven:
            paces = self._epoch(self.alone), self._epoch(self.several)
        else:
            paces = self._figure(self.alone), self._figure(self.several) + self._interval(self.several)
        without = "Without workers, several" if self._seconds_with_workers else "Several"
        candidate = f"{self.several.name} on {prediction.devices}{', the fastest of them' if best else ''}"
        comparison = (
            f"one device trains {paces[0]} and {candidate}, {paces[1]}"
            if self.several.weak_scaling
            else f"{period} takes {paces[0]} on one device and {paces[1]} with {candidate}"
        )
        return f"{without} devices are no faster {self._at_batch}: {comparison}."

    def _why_no_faster(self) -> str:
        bottleneck = self.several.prediction.bottleneck
        chokes = (self.several.gain or 0) < 1 and (bottleneck == "network" or self.predictor.cluster.has_gpus)
        choke = CHOKES.get(bottleneck, "") if chokes else ""
        traffic = f": each {self._traffic()}" if bottleneck == "network" else ""
        return f"Its steps are {self._limited_by(self.several)}{choke}{traffic}."

    @property
    def _is_uneven(self) -> bool:
        """Whether full steps are faster than on one device, but an epoch loses the gain in its short last batch."""
        prediction, one, gain = self.several.prediction, self.alone.prediction, self.several.gain
        if self.several.weak_scaling or not self.several.epoch_known or gain is None:
            return False
        return one.seconds / prediction.seconds > max(1.0, MIN_EPOCH_LOSS * gain)

    def _short_last_batch(self) -> str:
        prediction, samples = self.several.prediction, self.predictor.profile.samples_per_epoch
        return (
            f"Full batches are faster ({seconds_text(prediction.seconds)} instead of "
            f"{seconds_text(self.alone.prediction.seconds)}), but the last batch of an epoch has only "
            f"{samples % prediction.batch:,} samples: use a batch that divides {samples:,}."
        )

    def _does_not_fit_several(self) -> str:
        """Explain why several devices have no room where one has: a root device may hold everyone's gradients."""
        prediction = self.several.prediction
        return (
            f"{self._at_batch.capitalize()}, {self._workload} fits one device and {self._pace(self.alone)}, but "
            f"{self.several.name} on {prediction.devices} devices needs {gigabytes_text(prediction.memory_bytes)} of "
            f"memory on one of them."
        )

    def add(self, even: BreakEven) -> str:
        """Advise several devices."""
        prediction, gain = self.several.prediction, self.several.gain
        setup = f"{self.several.name} on {self._devices(prediction.devices)}"
        if gain is None:
            return (
                f"Use {setup}. {self._workload} {self._at_batch} does not fit one device: {self._memory(self.alone)}. "
                f"On {prediction.devices} devices, {self.several.name} "
                f"{self._pace(self.several, interval=True)} and needs {gigabytes_text(prediction.memory_bytes)} per "
                f"device. {self._why()}."
            )
        low, high = self._gain_interval
        period = "it" if self.several.weak_scaling else "an epoch" if self.several.epoch_known else "a step"
        if self.several.weak_scaling:
            paces = self._pace(self.several), self._figure(self.alone)
        else:
            paces = f"takes {self._epoch(self.several)}", self._epoch(self.alone)
        use = f"Use {setup}." if self.certain else f"Probably use {setup} ({UNCERTAIN})."
        first = self._workers_first(setup)
        comparison = f"{self._at_batch.capitalize()} {period} {paces[0]}"
        if first:
            per_period = "" if self.several.weak_scaling else " per epoch" if self.several.epoch_known else " per step"
            comparison = f"Without loading workers, {setup} {paces[0]}{per_period} {self._at_batch}"
        return _joined(
            first or use,
            f"{comparison} instead of {paces[1]} on one device: {gain:.2f} times as fast "
            f"(90% interval {low:.2f} to {high:.2f}), "
            f"{gain / prediction.devices:.0%} of linear scaling.",
            f"{self._why()}{self._uncounted_memory()}.",
            self._speedup_disappears(even) if self.certain else self._how_to_be_certain(),
        )

    def _why(self) -> str:
        return f"On {self.several.prediction.devices} devices the step is {self._limited_by(self.several)}"

    def _uncounted_memory(self) -> str:
        if any(layer.activation_bytes for layer in self.predictor.profile.layers):
            return ""
        return "; whether it fits in memory is unknown, because the profile has no sizes of activations"

    @property
    def certain(self) -> bool:
        """Whether the whole interval of the speed-up is above 1."""
        return self.several.gain is None or self._gain_interval[0] >= 1

    @property
    def _gain_interval(self) -> tuple[float, float]:
        """Interval of the speed-up; it combines the intervals of one device and of several.

        An error of compute that both have in common changes the speed-up only as far as their steps differ in the
        fraction that is compute.
        """
        one, prediction, gain = self.alone.prediction, self.several.prediction, self.several.gain or 0.0
        sensitivity = abs(one.compute_fraction - prediction.compute_fraction)
        common = [sensitivity * abs(math.log(limit)) for limit in prediction.common]
        below = math.hypot(math.log1p(prediction.apart[1]), -math.log1p(-one.apart[0]), max(common))
        above = math.hypot(-math.log1p(-prediction.apart[0]), math.log1p(one.apart[1]), max(common))
        return gain * math.exp(-below), gain * math.exp(above)

    @property
    def _workload(self) -> str:
        return self.predictor.profile.workload

    @property
    def _at_batch(self) -> str:
        if self.several.weak_scaling:
            return f"with {self.alone.prediction.batch:,} samples per device"
        return f"at batch {self.several.prediction.batch:,}"

    def _devices(self, count: int) -> str:
        return " and ".join(counted(device.name, number) for device, number in in_use(self.predictor.cluster, count))

    def _memory(self, row: Row) -> str:
        needed, available = gigabytes_text(row.prediction.memory_bytes), gigabytes_text(row.device_memory_bytes)
        return f"it needs {needed} of {available}"

    def _limited_by(self, row: Row) -> str:
        bottleneck = row.prediction.bottleneck
        if bottleneck == "idle" and row.prediction.strategy.servers:
            return LIMITED_BY_SERVER
        if bottleneck == "launch" and self.predictor.cluster.has_gpus:
            return LIMITED_BY_KERNEL_LAUNCHES
        return LIMITED_BY[bottleneck]

    def _pace(self, row: Row, interval: bool = False) -> str:
        """Return 'takes 4.31 ms per step (4.1-4.6 ms)' or 'trains 5,120 samples/s (4,900-5,400)'."""
        verb, per_step = ("trains", "") if row.weak_scaling else ("takes", " per step")
        return f"{verb} {self._figure(row)}{per_step}{self._interval(row) if interval else ''}"

    def _figure(self, row: Row) -> str:
        """Return the step time, or samples per second with --batch-per-device."""
        prediction = row.prediction
        if row.weak_scaling:
            return f"{_rate_text(prediction.batch / prediction.seconds)} samples/s"
        return seconds_text(prediction.seconds)

    def _interval(self, row: Row) -> str:
        """Return ' (4.1-4.6 ms)', or ' (4,900-5,400)' with --batch-per-device."""
        prediction = row.prediction
        if row.weak_scaling:
            low, high = prediction.batch / prediction.high, prediction.batch / prediction.low
            return f" ({_rate_text(low)}-{_rate_text(high)})"
        return f" ({interval_text(prediction.low, prediction.high)})"

    def _epoch(self, row: Row) -> str:
        """Return the time of an epoch, or of a step where the samples per epoch are unknown."""
        return seconds_text(row.prediction.epoch_seconds if row.epoch_known else row.prediction.seconds)

    def _traffic(self) -> str:
        """Return 'sends 92.3 MiB over the busiest link (20 ms) and computes for 4 ms'."""
        prediction = self.several.prediction
        group_size: int = prediction.strategy.inside
        devices = max(MAX_PLANNED_DEVICES // group_size, 1) * group_size
        if prediction.devices <= MAX_PLANNED_DEVICES or prediction.strategy.one_model:
            devices = prediction.devices  # options like cut=... fit one number of stages only
        plan = prediction.strategy.plan(
            self.predictor.footprint, devices, prediction.batch, self.predictor.cluster.backend
        )
        network = self._phase_seconds(*BETWEEN_DEVICES)
        compute = self._phase_seconds("forward", "backward", "update", "loss") - prediction.copied_seconds
        undisturbed = min(compute, self.predictor.costs.compute_seconds(prediction.batch_per_device))
        slowed = f" ({seconds_text(undisturbed)} without communication beside it)"
        return (
            f"sends {bytes_text(plan.busiest_bytes / 2)} over the busiest link ({seconds_text(network)}) and computes "
            f"for {seconds_text(compute)}{slowed if compute > MIN_SLOWDOWN * undisturbed else ''}"
        )

    def _phase_seconds(self, *phases: str) -> float:
        return sum(seconds for phase, seconds in self.several.prediction.phases.items() if phase in phases)

    def _when_faster(self, even: BreakEven) -> str:
        row = self.several
        if (row.gain or 0) >= 1:
            return f"The speed-up is below {MIN_SPEEDUP - 1:.0%}, too little to add devices."
        setup = f"With {row.name}, {row.prediction.devices} devices are faster than one"
        batch = ""
        if even.batch:
            per_device = f"{-(-even.batch // row.shares):,} samples per device"
            batch = f"from {per_device if row.weak_scaling else f'batch {even.batch:,} on'}"
        link = f"with links of at least {_bandwidth_text(even.bandwidth_GBps)}" if even.bandwidth_GBps else ""
        if batch and link:
            return f"{setup} {batch}, or {link}."
        if batch:
            return f"{setup} {batch}; faster links alone do not help."
        if link:
            return f"{setup} {link}; no larger batch that fits in memory helps."
        return "No batch that fits in memory and no faster link would change that."

    def _speedup_disappears(self, even: BreakEven) -> str:
        if even.bandwidth_GBps and even.bandwidth_GBps > 2 * SLOWEST_GBps:
            return f"Below {_bandwidth_text(even.bandwidth_GBps)} per link the speed-up disappears."
        return ""

    def _how_to_be_certain(self) -> str:
        one, prediction = self.alone.prediction, self.several.prediction
        splits_batch = batch_shares(prediction.strategy, prediction.devices) == prediction.devices
        guessed = {prediction.batch_per_device} if prediction.known == "extrapolated" and splits_batch else set()
        guessed |= {one.batch} if one.known == "extrapolated" else set()
        if guessed:
            sizes = " and ".join(f"{size:,}" for size in sorted(guessed))
            return (
                f"To be certain, profile one device at batch {sizes}, which was not measured, and give the file as "
                "--profile."
            )
        return (
            "To be certain, time two devices of this cluster with `scalewise measure` and give the folder as "
            "--calibrate."
        )

    def _workers_first(self, setup: str) -> str:
        """Advise loading workers where they make one device nearly as fast as several."""
        alone, prediction = self.alone.prediction, self.several.prediction
        one_step = seconds_with_workers(self.predictor, alone)
        if one_step is None:
            return ""
        one = one_step * prediction.batch / alone.batch
        several = seconds_with_workers(self.predictor, prediction) or prediction.seconds
        if one > MIN_SPEEDUP * several:
            return ""
        return (
            f"Before you add devices, load with {WORKERS} workers ({WORKERS_OPTION}): {self._devices(1)} would then "
            f"take {seconds_text(one)} for {prediction.batch:,} samples, {setup} {seconds_text(several)}."
        )


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _bandwidth_text(GBps: float) -> str:
    return f"{GBps:.3g} GB/s" if GBps >= 0.1 else f"{1e3 * GBps:.3g} MB/s"


def _rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


@dataclass(frozen=True)
class Verdict:
    add_devices: bool
    best: Row
    bottleneck: Bottleneck
    reason: str
    break_even: BreakEven
    changes: tuple[Change, ...]
    sure: bool = True
    """Whether the whole interval of the speedup is above 1; always true if no devices are added."""

    def to_json(self) -> dict[str, Any]:
        return {
            "add_devices": self.add_devices,
            "sure": self.sure,
            "best": self.best.to_json(),
            "bottleneck": self.bottleneck,
            "reason": self.reason,
            "break_even": {"batch": self.break_even.batch, "bandwidth_GBps": self.break_even.bandwidth_GBps},
            "changes": [change.to_json() for change in self.changes],
        }


def verdict_of(predictor: Predictor, rows: Sequence[Row]) -> Verdict:
    """Decide on the rows of one batch. The first row is one device; only exact strategies are advised."""
    alone = rows[0]
    exact = [row for row in rows[1:] if row.prediction.strategy.exact]
    no_break_even = BreakEven(None, None)
    if not exact:
        reason = Explanation(predictor, alone, alone).one_device()
        return Verdict(False, alone, alone.prediction.bottleneck, reason, no_break_even, ())
    fitting = [row for row in exact if row.prediction.fits]
    if not fitting and not alone.prediction.fits:
        smallest = min(exact, key=lambda row: row.prediction.memory_bytes)
        reason = Explanation(predictor, alone, smallest).nothing_fits(smaller_batch_that_fits(predictor, exact))
        return Verdict(False, alone, "memory", reason, no_break_even, ())
    fastest = best_row(fitting) if fitting else alone
    add = fastest is not alone and (not alone.prediction.fits or (fastest.gain or 0) > MIN_SPEEDUP)
    several = fastest if add else _most_telling(exact)
    prediction = several.prediction
    even = break_even(predictor, prediction.strategy, prediction.devices, prediction.batch, several.shares)
    if not prediction.fits:
        even = replace(even, bandwidth_GBps=None)  # no link makes it fit
    explanation = Explanation(predictor, alone, several)
    changes = changes_of(predictor, alone, several, {row.prediction.strategy.name for row in rows})
    faster = [
        change
        for change in changes
        if change.strategy and (MIN_SPEEDUP * change.seconds < prediction.seconds or not prediction.fits)
    ]
    other = next((change for change in faster if (change.speedup or 0) > MIN_SPEEDUP), None)
    return Verdict(
        add,
        several if add else alone,
        prediction.bottleneck,
        explanation.add(even) if add else explanation.stay(even, several is best_row(exact), other),
        even,
        changes,
        explanation.certain or not add,
    )


def smaller_batch_that_fits(predictor: Predictor, rows: Sequence[Row]) -> tuple[int, Row] | None:
    """Halve the batch until it fits; return it with the fastest row, or None if no batch fits."""
    batch = rows[0].prediction.batch // 2
    rows = [row for row in rows if _could_fit(predictor, row.prediction)]
    while batch and rows:
        candidates: list[tuple[float, int]] = []
        for number, row in enumerate(rows):
            seconds = seconds_if_possible(predictor, row.prediction.strategy, row.prediction.devices, batch)
            if seconds is not None:
                candidates.append((seconds, number))
        if candidates:
            return batch, rows[min(candidates)[1]]
        batch //= 2
    return None


def _could_fit(predictor: Predictor, prediction: Prediction) -> bool:
    """Whether the smallest batch fits in memory; also true for a strategy that refuses it."""
    try:
        return predictor.fits(prediction.strategy, prediction.devices, 1)
    except UserError:
        return True


def _most_telling(rows: Sequence[Row]) -> Row:
    """Choose the row that explains why several devices are no faster: the best one that splits the batch.

    Strategies whose devices work in turn lose little to communication, but cannot be faster than one device.
    """
    splitting = [row for row in rows if _splits_batch(row)] or rows
    return best_row([row for row in splitting if row.prediction.fits] or splitting)


def _splits_batch(row: Row) -> bool:
    prediction = row.prediction
    return batch_shares(prediction.strategy, prediction.devices) == prediction.devices


def best_row(rows: Sequence[Row]) -> Row:
    """Choose the fastest row; among rows within MIN_SPEEDUP of it, the one with fewest devices, then torch's own
    strategy."""
    least = min(map(_seconds_per_sample, rows))
    near = [row for row in rows if _seconds_per_sample(row) < MIN_SPEEDUP * least]
    fewest = min(row.prediction.devices for row in near)
    near = [row for row in near if row.prediction.devices == fewest]
    standard = [row for row in near if row.prediction.strategy.standard]
    return standard[0] if standard else min(near, key=_seconds_per_sample)


def _seconds_per_sample(row: Row) -> float:
    return row.prediction.seconds / row.prediction.batch
