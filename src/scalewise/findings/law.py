"""The inverse-batch law: an epoch takes a floor plus a constant for every step, however large the steps are."""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.findings.cell import Series
from scalewise.findings.finding import Finding, devices_text, listed
from scalewise.findings.line import fit_line, r_squared_text
from scalewise.results.units import seconds_text

HOLDS_FROM = 0.98
"""R squared above which we say that the law holds."""


@dataclass(frozen=True)
class LawFit:
    """epoch seconds = floor + steps x seconds per step, at one device count."""

    devices: int
    floor_seconds: float
    """What all samples cost together: loading and computing them."""
    seconds_per_step: float
    """What a step costs however few its samples: launches, the update, and the model's way between devices."""
    r_squared: float
    worst_error: float
    """Relative, of any batch."""
    batches: int

    @property
    def holds(self) -> bool:
        return self.r_squared >= HOLDS_FROM and self.seconds_per_step > 0 and self.floor_seconds > 0

    def epoch_seconds(self, steps: float) -> float:
        return self.floor_seconds + self.seconds_per_step * steps


@dataclass(frozen=True)
class InverseBatchLaw(Finding):
    """The fit of each device count."""

    fits: tuple[LawFit, ...]

    @property
    def holding(self) -> list[LawFit]:
        return [fit for fit in self.fits if fit.holds]

    @property
    def telling(self) -> bool:
        return bool(self.holding)

    @property
    def sentence(self) -> str:
        failing = [fit for fit in self.fits if not fit.holds]
        without = listed([f"{fit.r_squared:.2f} on {fit.devices}" for fit in failing]) if failing else ""
        if not self.holding:
            return f"epoch = floor + steps x constant does not hold (R² = {without})"
        laws = listed(
            [
                f"{seconds_text(fit.floor_seconds)} + steps x {seconds_text(fit.seconds_per_step)} on {fit.devices}"
                for fit in self.holding
            ]
        )
        least, worst = min(fit.r_squared for fit in self.holding), max(fit.worst_error for fit in self.holding)
        sentence = f"epoch = {laws} (R² ≥ {r_squared_text(least)}, no batch off by more than {worst:.1%})"
        if not failing:
            return sentence
        return f"{sentence}; not so on {devices_text([fit.devices for fit in failing])} (R² = {without})"


def inverse_batch_law(series: Series) -> InverseBatchLaw | None:
    """Of every device count with at least three batches; None without any."""
    fits = []
    for devices in series.device_counts:
        cells = series.line(devices)
        if fit := fit_line([cell.steps for cell in cells], [cell.epoch_seconds for cell in cells]):
            fits.append(LawFit(devices, fit.intercept, fit.slope, fit.r_squared, fit.worst_error, len(cells)))
    return InverseBatchLaw(series.name, tuple(fits)) if fits else None
