"""The floor under an epoch that no batch size removes: what every sample costs, data loading first of all."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from scalewise.findings.cell import Series
from scalewise.findings.finding import Finding
from scalewise.findings.law import inverse_batch_law
from scalewise.results.units import seconds_text


@dataclass(frozen=True)
class LoadingFloor(Finding):
    """On one device, where nothing else is in the way."""

    floor_seconds: float
    """Per epoch: the law's intercept, loading and the compute that grows with the samples."""
    seconds_per_sample: float
    load_seconds: float | None
    """Per epoch, as the steps' `load` phase was timed; None where phases were not."""

    @property
    def telling(self) -> bool:
        return False

    @property
    def sentence(self) -> str:
        floor = (
            f"on one device no batch brings an epoch below {seconds_text(self.floor_seconds)}, "
            f"{self.seconds_per_sample * 1e6:.1f} µs for each sample"
        )
        if self.load_seconds is None:
            return f"{floor}: loading them, and what computing grows with them"
        share = self.load_seconds / self.floor_seconds
        return f"{floor}; loading the data takes {seconds_text(self.load_seconds)} of it ({share:.0%})"


def loading_floor(series: Series) -> LoadingFloor | None:
    """None where the law does not hold: then nothing separates the floor from the steps."""
    law = inverse_batch_law(series)
    fit = next((fit for fit in law.holding if fit.devices == 1), None) if law else None
    if fit is None:
        return None
    cells = series.line(1)
    loads = [cell.phases["load"] * cell.steps for cell in cells if "load" in cell.phases]
    return LoadingFloor(
        series.name, fit.floor_seconds, fit.floor_seconds / cells[0].samples, median(loads) if loads else None
    )
