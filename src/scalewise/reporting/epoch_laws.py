"""Dependence of the epoch time on the batch size: inverse-batch law, loading floor, saturation and bounce."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from scalewise.core.units import seconds_text
from scalewise.reporting.finding import Finding, devices_text, fit_line, listed, r_squared_text
from scalewise.reporting.series import Series

HOLDS_FROM = 0.98
"""Smallest R² at which the law is said to hold."""


@dataclass(frozen=True)
class LawFit:
    """Fit of `epoch seconds = floor + steps x seconds per step` at one device count."""

    devices: int
    floor_seconds: float
    """Time to load and compute all samples of an epoch."""
    seconds_per_step: float
    """Fixed cost of a step at any batch size: kernel launches, the update and communication."""
    r_squared: float
    worst_error: float
    """Largest relative error of the fit over the batch sizes."""
    batches: int

    @property
    def holds(self) -> bool:
        return self.r_squared >= HOLDS_FROM and self.seconds_per_step > 0 and self.floor_seconds > 0

    def epoch_seconds(self, steps: float) -> float:
        return self.floor_seconds + self.seconds_per_step * steps


@dataclass(frozen=True)
class InverseBatchLaw(Finding):
    """Whether the epoch time is a floor plus a constant cost per step, for each device count."""

    fits: tuple[LawFit, ...]

    @property
    def holding(self) -> list[LawFit]:
        return [fit for fit in self.fits if fit.holds]

    @property
    def notable(self) -> bool:
        return bool(self.holding)

    @property
    def sentence(self) -> str:
        failing = [fit for fit in self.fits if not fit.holds]
        poor = listed([f"{fit.r_squared:.2f} on {devices_text([fit.devices])}" for fit in failing]) if failing else ""
        if not self.holding:
            return f"the epoch time does not follow floor + steps x constant (R² = {poor})"
        laws = listed(
            [
                f"{seconds_text(fit.floor_seconds)} + steps x {seconds_text(fit.seconds_per_step)} "
                f"on {devices_text([fit.devices])}"
                for fit in self.holding
            ]
        )
        least, worst = min(fit.r_squared for fit in self.holding), max(fit.worst_error for fit in self.holding)
        sentence = f"epoch time = {laws} (R² ≥ {r_squared_text(least)}, largest error {worst:.1%})"
        return f"{sentence}; this form does not fit the others (R² = {poor})" if failing else sentence


def inverse_batch_law(series: Series) -> InverseBatchLaw | None:
    """Fit the law at every device count with at least three batch sizes; None without any."""
    fits = []
    for devices in series.device_counts:
        cells = series.line(devices)
        if fit := fit_line([cell.steps for cell in cells], [cell.epoch_seconds for cell in cells]):
            fits.append(LawFit(devices, fit.intercept, fit.slope, fit.r_squared, fit.worst_error, len(cells)))
    return InverseBatchLaw(series.name, tuple(fits)) if fits else None


@dataclass(frozen=True)
class LoadingFloor(Finding):
    """Smallest epoch time of one device at any batch size, and the part of it that loads data."""

    floor_seconds: float
    """Seconds per epoch at an infinite batch size: the intercept of the inverse-batch law."""
    seconds_per_sample: float
    load_seconds: float | None
    """Seconds per epoch in the `load` phase; None if phases were not timed."""

    @property
    def notable(self) -> bool:
        return False

    @property
    def sentence(self) -> str:
        floor = (
            f"on one device an epoch takes at least {seconds_text(self.floor_seconds)} at any batch size "
            f"({self.seconds_per_sample * 1e6:.0f} µs per sample)"
        )
        if self.load_seconds is None:
            return f"{floor}, to load and compute the samples"
        share = self.load_seconds / self.floor_seconds
        return f"{floor}; loading the data takes {seconds_text(self.load_seconds)} of that ({share:.0%})"


def loading_floor(series: Series) -> LoadingFloor | None:
    """Derive the floor from the inverse-batch law; None if the law does not hold on one device."""
    law = inverse_batch_law(series)
    fit = next((fit for fit in law.holding if fit.devices == 1), None) if law else None
    if fit is None:
        return None
    cells = series.line(1)
    loads = [cell.phases["load"] * cell.steps for cell in cells if "load" in cell.phases]
    return LoadingFloor(
        series.name, fit.floor_seconds, fit.floor_seconds / cells[0].samples, median(loads) if loads else None
    )


WORTHWHILE = 0.05
"""Smallest fraction of the epoch time that a larger batch must save to count as an improvement."""


@dataclass(frozen=True)
class SaturationPoint:
    """Smallest batch of one device count that no larger batch beats by 5% or more."""

    devices: int
    batch: int
    batch_per_device: int
    reached: bool
    """False if this is the largest batch measured: a larger batch may still be faster."""


@dataclass(frozen=True)
class Saturation(Finding):
    """Batch sizes above which an epoch hardly gets faster, for each device count."""

    points: tuple[SaturationPoint, ...]

    @property
    def reached(self) -> list[SaturationPoint]:
        return [point for point in self.points if point.reached]

    @property
    def notable(self) -> bool:
        return False

    @property
    def sentence(self) -> str:
        unsaturated = [point.devices for point in self.points if not point.reached]
        if not self.reached:
            return f"not saturated on {devices_text(unsaturated)}: the largest batch measured is the fastest"
        batches = listed(
            [
                f"{point.batch} on {devices_text([point.devices])} ({point.batch_per_device} per device)"
                for point in self.reached
            ]
        )
        sentence = f"a larger batch saves less than {WORTHWHILE:.0%} of the epoch time from batch {batches}"
        return f"{sentence}; not saturated on {devices_text(unsaturated)}" if unsaturated else sentence


def saturation(series: Series) -> Saturation | None:
    """Find the saturation point of every device count with at least three batch sizes; None without any."""
    points = []
    for devices in series.device_counts:
        cells = series.line(devices)
        if len(cells) < 3:
            continue
        first = next(
            cell
            for number, cell in enumerate(cells)
            if min(later.epoch_seconds for later in cells[number:]) >= cell.epoch_seconds * (1 - WORTHWHILE)
        )
        points.append(SaturationPoint(devices, first.batch, first.batch_per_device, first is not cells[-1]))
    return Saturation(series.name, tuple(points)) if points else None


SMALLEST_JUMP = 0.10
"""Smallest relative rise of seconds per sample between neighbouring batch sizes that counts as a jump."""


@dataclass(frozen=True)
class Jump:
    """A rise of seconds per sample from one batch size to the next, at one device count."""

    devices: int
    last_low: int
    """Batch per device before the jump."""
    first_high: int
    """Batch per device after the jump."""
    rise: float
    """Relative rise of seconds per sample."""


@dataclass(frozen=True)
class Bounce(Finding):
    """Largest jump of seconds per sample at each device count, and the batch per device at which all of them occur."""

    jumps: tuple[Jump, ...]
    above: int | None
    """Largest batch per device before a jump at any device count; None if the device counts disagree."""
    at_most: int | None
    """Smallest batch per device after a jump at any device count; None if the device counts disagree."""

    @property
    def sentence(self) -> str:
        rises = [jump.rise for jump in self.jumps]
        size = f"{min(rises):.0%}" if len(rises) == 1 else f"{min(rises):.0%} to {max(rises):.0%}"
        steps = [f"{jump.last_low} to {jump.first_high} on {devices_text([jump.devices])}" for jump in self.jumps]
        jumps = f"time per sample jumps by {size}"
        if self.above is None:
            return f"{jumps}, but not at the same batch per device (from {listed(steps)})"
        last = round(median(jump.last_low for jump in self.jumps))
        within = f"; all between {self.above} and {self.at_most}" if len(self.jumps) > 1 else ""
        return f"{jumps} above about {last} samples per device (from {listed(steps)}{within})"


def bounce(series: Series) -> Bounce | None:
    """Find where seconds per sample jump as the batch grows; None if they do not."""
    jumps = []
    for devices in series.device_counts:
        rising = [
            Jump(
                devices,
                low.batch_per_device,
                high.batch_per_device,
                low.samples_per_second / high.samples_per_second - 1,
            )
            for low, high in pairwise(series.line(devices))
            if high.surely_slower_than(low, SMALLEST_JUMP)
        ]
        if rising:
            jumps.append(max(rising, key=lambda jump: jump.rise))
    if not jumps:
        return None
    above, at_most = max(jump.last_low for jump in jumps), min(jump.first_high for jump in jumps)
    agree = above < at_most
    return Bounce(series.name, tuple(jumps), above if agree else None, at_most if agree else None)
