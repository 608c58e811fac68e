"""The batch from which on a device is busy: larger ones make an epoch no faster."""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.findings.cell import Series
from scalewise.findings.finding import Finding, devices_text, listed

WORTHWHILE = 0.05
"""A larger batch must save this part of an epoch to count."""


@dataclass(frozen=True)
class SaturationPoint:
    """Of one device count: the smallest batch that no larger one beats by far."""

    devices: int
    batch: int
    batch_per_device: int
    reached: bool
    """False if it is the largest batch measured: a larger one might still be worth it."""


@dataclass(frozen=True)
class Saturation(Finding):
    points: tuple[SaturationPoint, ...]

    @property
    def reached(self) -> list[SaturationPoint]:
        return [point for point in self.points if point.reached]

    @property
    def telling(self) -> bool:
        return False

    @property
    def sentence(self) -> str:
        open_ended = [point.devices for point in self.points if not point.reached]
        if not self.reached:
            return f"not saturated on {devices_text(open_ended)}: the largest batch is still {WORTHWHILE:.0%} faster"
        each = listed(
            [f"batch {point.batch} on {point.devices} ({point.batch_per_device} each)" for point in self.reached]
        )
        sentence = f"saturated from {each}: no larger batch saves {WORTHWHILE:.0%} of an epoch"
        return f"{sentence}; not yet on {devices_text(open_ended)}" if open_ended else sentence


def saturation(series: Series) -> Saturation | None:
    """Of every device count with at least three batches; None without any."""
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
