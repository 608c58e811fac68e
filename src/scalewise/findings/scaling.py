"""Two ways to add devices: the same global batch shared by more, or the same batch on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scalewise.findings.cell import Cell, Series


@dataclass(frozen=True)
class Scaling:
    """Throughput over one device, by device count, for one starting batch."""

    batch: int
    """Global in `fixed_global`, per device in `fixed_per_device`."""
    speedups: dict[int, float]
    uncertainty: dict[int, float] = field(default_factory=dict)
    """What the timings of several devices and of one leave open, as a fraction."""


def _beside_one(batch: int, one: Cell, several: Mapping[int, Cell]) -> Scaling:
    """Beside one device, which is what it is."""
    return Scaling(
        batch,
        {count: cell.samples_per_second / one.samples_per_second for count, cell in several.items()},
        {count: cell.open_beside(one) for count, cell in several.items() if cell is not one},
    )


def fixed_global(series: Series) -> list[Scaling]:
    """The same mathematics on more devices: each gets less."""
    found = []
    for batch in series.batches:
        cells = {count: cell for count in series.device_counts if (cell := series.at(count, batch))}
        if 1 in cells and len(cells) > 1:
            found.append(_beside_one(batch, cells[1], cells))
    return found


def fixed_per_device(series: Series) -> list[Scaling]:
    """As much work on each as one had: the global batch grows with the devices."""
    found = []
    for one in series.line(1):
        cells = {count: cell for count in series.device_counts if (cell := series.at(count, one.batch * count))}
        if len(cells) > 1:
            found.append(_beside_one(one.batch, one, cells))
    return found
