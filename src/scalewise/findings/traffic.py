"""What crosses the busiest device's link in an epoch, and whether it governs the epoch."""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.findings.cell import Cell, Series
from scalewise.findings.finding import Finding, devices_text, listed
from scalewise.findings.line import fit_line, r_squared_text
from scalewise.results.statistics import FEWEST

GOVERNS_FROM = 0.9
"""R squared above which we say that transfers govern the epoch."""
EXPLAINS_FROM = 0.5
"""R squared below which a line through the cells says nothing, and is not drawn."""
GB = 1e9


@dataclass(frozen=True)
class Traffic(Finding):
    """Bytes per epoch that the busiest device sends and receives; half as many when the batch doubles."""

    bytes_per_epoch: dict[int, dict[int, int]]
    """Device count -> global batch -> bytes."""

    @property
    def telling(self) -> bool:
        return False

    @property
    def sentence(self) -> str:
        alike: dict[str, list[int]] = {}
        for devices, by_batch in self.bytes_per_epoch.items():
            ends = sorted({min(by_batch), max(by_batch)})
            text = listed([f"{by_batch[batch] / GB:.3g} GB at batch {batch}" for batch in ends])
            alike.setdefault(text, []).append(devices)
        each = "; ".join(f"{text} on {devices_text(counts)}" for text, counts in alike.items())
        return f"in an epoch the busiest device moves {each}"


@dataclass(frozen=True)
class TransferFit(Finding):
    """epoch seconds = floor + bytes / bandwidth, over all cells with several devices."""

    floor_seconds: float
    GBps: float | None
    """What the link then delivers; None if epochs do not grow with the bytes."""
    r_squared: float
    cells: int

    @property
    def possible(self) -> bool:
        """No epoch takes less than no time, however little is moved."""
        return self.GBps is not None and self.floor_seconds >= 0

    @property
    def explains(self) -> bool:
        return self.possible and self.r_squared >= EXPLAINS_FROM

    @property
    def governs(self) -> bool:
        return self.possible and self.r_squared >= GOVERNS_FROM

    def epoch_seconds(self, transferred_bytes: float) -> float:
        return self.floor_seconds + (transferred_bytes / GB / self.GBps if self.GBps else 0.0)

    @property
    def telling(self) -> bool:
        return self.governs

    @property
    def sentence(self) -> str:
        if self.floor_seconds < 0:
            return (
                "on several devices the bytes moved do not explain the epoch (the line through the cells is below zero "
                "where nothing is moved)"
            )
        if not self.governs:
            return f"on several devices the bytes moved do not explain the epoch (R² = {self.r_squared:.2f})"
        return (
            f"on several devices an epoch follows the bytes moved, at {self.GBps:.2g} GB/s over "
            f"{self.cells} cells (R² = {r_squared_text(self.r_squared)})"
        )


def moving(series: Series) -> list[Cell]:
    """Cells with several devices whose bytes are known."""
    return [cell for cell in series.cells if cell.devices > 1 and cell.bytes_per_epoch]


def traffic(series: Series) -> Traffic | None:
    by_count: dict[int, dict[int, int]] = {}
    for cell in sorted(moving(series), key=lambda cell: (cell.devices, cell.batch)):
        by_count.setdefault(cell.devices, {})[cell.batch] = cell.bytes_per_epoch or 0
    return Traffic(series.name, by_count) if by_count else None


def transfer_fit(series: Series) -> TransferFit | None:
    """None with fewer than three different amounts; cells of a few steps say too little to draw a line by."""
    cells = [cell for cell in moving(series) if cell.timed_steps is None or cell.timed_steps >= FEWEST]
    fit = fit_line([float(cell.bytes_per_epoch or 0) for cell in cells], [cell.epoch_seconds for cell in cells])
    if fit is None:
        return None
    rate = 1 / fit.slope / GB if fit.slope > 0 else None
    return TransferFit(series.name, fit.intercept, rate, fit.r_squared, len(cells))
