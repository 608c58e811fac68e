"""A verdict in plain words, with its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scalewise.advice.break_even import BreakEven, SLOWEST_GBps
from scalewise.advice.changes import Change
from scalewise.advice.device import counted
from scalewise.advice.loading import OPTION, WORKERS, loaded_beside
from scalewise.advice.rows import Row
from scalewise.phases import BETWEEN_DEVICES
from scalewise.prediction.predict import Predictor
from scalewise.results.units import bytes_text, seconds_text
from scalewise.simulation.layout import in_use
from scalewise.strategies.strategy import batch_shares, servers_of

FEW = 16
"""Devices whose plan tells what a link carries with more."""
SLOWED = 1.1
"""Compute that takes as many times its own seconds beside communication is told so."""
UNEVEN = 1.02
"""Times as fast as an epoch full steps are where its last batch is worth a word."""
WHY = {
    "network": "choked by the network",
    "compute": "bound by compute",
    "launch": "bound by launching work on the device, which more devices do not shorten",
    "input": "bound by loading its samples",
    "memory": "too large for a device's memory",
    "idle": "held up by devices that wait for each other",
}
SERVER = "held up by the server, which updates for all"


@dataclass(frozen=True)
class Reason:
    """On one device beside several."""

    predictor: Predictor
    alone: Row
    several: Row

    def of_one(self) -> str:
        made = self.alone.prediction
        return f"{self._workload} on {self._devices(1)}: {seconds_text(made.seconds)} a step, {WHY[made.bottleneck]}."

    def too_large(self, smaller: tuple[int, Row] | None) -> str:
        """`smaller`: a batch that fits, and how."""
        made = self.several.prediction
        instead = ""
        if smaller:
            batch, row = smaller
            instead = f"A batch of {batch:,} would fit, under {row.name} on {row.prediction.devices} devices."
        return _joined(
            f"Nothing fits: {self._workload} {self._at} needs {bytes_text(made.memory_bytes)} of memory on each of "
            f"{made.devices} devices at the least ({self.several.name}), and {self._devices(1)} has "
            f"{bytes_text(self.predictor.cluster.devices[0].memory_GB * 1e9)}.",
            instead,
        )

    def _not_into_one(self) -> str:
        needed, each = (bytes_text(row.prediction.memory_bytes) for row in (self.alone, self.several))
        has = bytes_text(self.predictor.cluster.devices[0].memory_GB * 1e9)
        return (
            f"{self._workload} {self._at} does not fit into one, which would need {needed} of its {has}; there it "
            f"{self._pace(self.several, interval=True)}, with {each} on each."
        )

    def to_stay(self, even: BreakEven, worth: float, best: bool, other: Change | None = None) -> str:
        """`best`: no strategy on several devices is faster than the one told of; `other`: but for one that nobody asked
        about."""
        instead = ""
        if other:
            instead = (
                f"{other.strategy}, which was not asked about, would take {seconds_text(other.seconds)} a step there: "
                f"{other.speedup:.2f} times faster than one."
            )
        why = self._no_faster(even, worth, best) if self.several.prediction.fits else self._no_room()
        return _joined(f"Stay on {self._devices(1)}.", why, instead, self._one_loaded(worth))

    def _no_faster(self, even: BreakEven, worth: float, best: bool) -> str:
        made = self.several.prediction
        spent = f": {self._moved()}" if made.bottleneck == "network" else ""
        which = "The best of several" if best else "The best that shares out the batch"
        paces = f"{self._pace(self.several, interval=True)} where one {self._pace(self.alone)}"
        if self._is_uneven:
            paces = f"{self._pace(self.several, epoch=True)} an epoch where one {self._pace(self.alone, epoch=True)}"
        return _joined(
            f"{self._at.capitalize()}, {self._workload} on {self.predictor.cluster.name} is {self._why}{spent}.",
            f"{which}, {self.several.name} on {made.devices} devices, {paces}.",
            self._of_the_last_batch() if self._is_uneven else self._when_faster(even, worth),
        )

    @property
    def _is_uneven(self) -> bool:
        """Whether full steps are faster than one device's, and an epoch is not for its last."""
        made, one, gain = self.several.prediction, self.alone.prediction, self.several.gain
        if self.several.grown or not self.several.epoch_known or gain is None:
            return False
        return one.seconds / made.seconds > max(1.0, UNEVEN * gain)

    def _of_the_last_batch(self) -> str:
        made, samples = self.several.prediction, self.predictor.profile.samples_per_epoch
        return (
            f"Full batches take {seconds_text(made.seconds)} there, {seconds_text(self.alone.prediction.seconds)} on "
            f"one: it is the last of an epoch, of {samples % made.batch:,} samples, that costs the gain; a batch that "
            f"divides {samples:,} has none."
        )

    def _no_room(self) -> str:
        """Where one device has it: a root may hold more than one that works alone."""
        made = self.several.prediction
        return (
            f"{self._at.capitalize()}, {self._workload} fits one, which {self._pace(self.alone)}, but "
            f"{self.several.name} on {made.devices} devices needs {bytes_text(made.memory_bytes)} of memory on one of "
            "them."
        )

    def to_add(self, even: BreakEven, worth: float) -> str:
        made, gain = self.several.prediction, self.several.gain
        use = f"{'Use' if self.sure else 'Probably use'} {self.several.name} on {self._devices(made.devices)}"
        if gain is None:
            return f"{use}: {self._not_into_one()} The step is then {self._why}."
        low, high = self._gains
        reach = f"{low:.2f} to {high:.2f}" if self.sure else f"{low:.2f} to {high:.2f}: it cannot be told for sure"
        what = "it" if self.several.grown else "an epoch" if self.several.epoch_known else "a step"
        said = (
            f"{use}: {self._at} {what} {self._pace(self.several, epoch=True)} where one device "
            f"{self._pace(self.alone, epoch=True)}: {gain:.2f} times faster ({reach}), "
            f"{gain / made.devices:.0%} of linear."
        )
        first = self._loaded_first(worth)
        if first:
            said = said[0].lower() + said[1:]
        why = f"The step is then {self._why}."
        return _joined(first, said, self._how_to_be_sure(), why, self._when_undone(even), self._unfit())

    def _unfit(self) -> str:
        """Said where memory is that of weights only."""
        if any(layer.activation_bytes for layer in self.predictor.profile.layers):
            return ""
        return "Whether it fits is not known: what its layers keep of a sample is not counted."

    @property
    def sure(self) -> bool:
        return self.several.gain is None or self._gains[0] >= 1

    @property
    def _gains(self) -> tuple[float, float]:
        """What is not known of one device counts as much as what is not known of several."""
        one, made, gain = self.alone.prediction, self.several.prediction, self.several.gain or 0.0
        less = math.hypot(math.log(made.high / made.seconds), math.log(one.seconds / one.low))
        more = math.hypot(math.log(made.seconds / made.low), math.log(one.high / one.seconds))
        return gain * math.exp(-less), gain * math.exp(more)

    @property
    def _workload(self) -> str:
        return self.predictor.profile.workload

    @property
    def _at(self) -> str:
        if self.several.grown:
            return f"with {self.alone.prediction.batch:,} samples on each device"
        return f"at batch {self.several.prediction.batch:,}"

    def _devices(self, count: int) -> str:
        return " and ".join(counted(device.name, each) for device, each in in_use(self.predictor.cluster, count))

    @property
    def _why(self) -> str:
        made = self.several.prediction
        return SERVER if made.bottleneck == "idle" and servers_of(made.strategy) else WHY[made.bottleneck]

    def _pace(self, row: Row, interval: bool = False, epoch: bool = False) -> str:
        """'takes 4.31 ms a step', 'takes 1.2 s' of an epoch, 'trains 5,120 samples/s'."""
        made = row.prediction
        if row.grown:
            rates = [made.batch / seconds for seconds in (made.seconds, made.high, made.low)]
            reach = f" ({_count(rates[1])} to {_count(rates[2])})" if interval else ""
            return f"trains {_count(rates[0])} samples/s{reach}"
        if epoch:
            return f"takes {seconds_text(made.epoch_seconds if row.epoch_known else made.seconds)}"
        reach = f" ({seconds_text(made.low)} to {seconds_text(made.high)})" if interval else ""
        return f"takes {seconds_text(made.seconds)} a step{reach}"

    def _moved(self) -> str:
        """'each step moves 92.3 MiB over the busiest link (20 ms) for 4 ms of compute'."""
        made = self.several.prediction
        inside: int = getattr(made.strategy, "inside", 1)  # groups of a hybrid are kept whole
        few = made.devices if made.devices <= FEW else max(FEW // inside, 1) * inside
        plan = made.strategy.plan(self.predictor.footprint, few, made.batch, self.predictor.cluster.backend)
        network = self._seconds(*BETWEEN_DEVICES)
        compute = self._seconds("forward", "backward", "update", "loss") - made.copied_seconds
        own = min(compute, self.predictor.costs.compute_seconds(made.batch_per_device))
        slowed = f", which take {seconds_text(compute)} beside it" if compute > SLOWED * own else ""
        return (
            f"each step moves {bytes_text(plan.busiest_bytes / 2)} over the busiest link ({seconds_text(network)}) for "
            f"{seconds_text(own if slowed else compute)} of compute{slowed}"
        )

    def _seconds(self, *phases: str) -> float:
        return sum(seconds for phase, seconds in self.several.prediction.phases.items() if phase in phases)

    def _when_faster(self, even: BreakEven, worth: float) -> str:
        row, devices = self.several, self.several.prediction.devices
        if (row.gain or 0) >= 1:
            return f"It gains less than {worth - 1:.0%}."
        batch = "at no batch that fits"
        if even.batch:
            each = f"{-(-even.batch // row.shares):,} samples on each" if row.grown else f"batch {even.batch:,}"
            batch = f"from {each} on"
        link = f"with links of {even.bandwidth_GBps:.3g} GB/s" if even.bandwidth_GBps else "with no link, however fast"
        return f"{row.name} on {devices} devices would be faster than one {batch}, or {link}."

    def _when_undone(self, even: BreakEven) -> str:
        if even.bandwidth_GBps and even.bandwidth_GBps > 2 * SLOWEST_GBps:
            return f"Links slower than {even.bandwidth_GBps:.3g} GB/s would undo it."
        return ""

    def _how_to_be_sure(self) -> str:
        if self.sure:
            return ""
        one, made = self.alone.prediction, self.several.prediction
        shared_out = batch_shares(made.strategy, made.devices) == made.devices
        guessed = {made.batch_per_device} if made.known == "extrapolated" and shared_out else set()
        guessed |= {one.batch} if one.known == "extrapolated" else set()
        if guessed:
            sizes = " and ".join(f"{size:,}" for size in sorted(guessed))
            timed = "which was not profiled" if len(guessed) == 1 else "which were not profiled"
            return f"To be sure, time one device at batch {sizes}, {timed}, and give that as --profile."
        return "To be sure, time it on two devices there with `scalewise measure`, and give its folder as --calibrate."

    def _one_loaded(self, worth: float) -> str:
        """Said where one device stays and loading holds it up."""
        alone = self.alone.prediction
        loaded = loaded_beside(self.predictor, alone)
        if loaded is None or alone.seconds < worth * loaded:
            return ""
        return f"One with {WORKERS} loading workers ({OPTION}) would take {seconds_text(loaded)} a step."

    def _loaded_first(self, worth: float) -> str:
        """Said where loading beside compute brings one device as far as several."""
        alone, made = self.alone.prediction, self.several.prediction
        loaded = loaded_beside(self.predictor, alone)
        if loaded is None:
            return ""
        one = loaded * made.batch / alone.batch
        spread = loaded_beside(self.predictor, made) or made.seconds
        if one > worth * spread:
            return ""
        return (
            f"Load beside compute before you add devices: {self._devices(1)} with {WORKERS} loading workers ({OPTION}) "
            f"would take {seconds_text(one)} for {made.batch:,} samples, {made.devices} devices with as many each "
            f"{seconds_text(spread)}. As samples are loaded now,"
        )


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _count(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
