"""Two ways to add devices: the same global batch shared by more, or the same batch on each."""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.findings.cell import Series


@dataclass(frozen=True)
class Scaling:
    """Throughput over one device, by device count, for one starting batch."""

    batch: int
    """Global in `fixed_global`, per device in `fixed_per_device`."""
    speedups: dict[int, float]


def fixed_global(series: Series) -> list[Scaling]:
    """The same mathematics on more devices: each gets less."""
    found = []
    for batch in series.batches:
        one = series.at(1, batch)
        rates = {
            count: cell.samples_per_second / one.samples_per_second
            for count in series.device_counts
            if one and (cell := series.at(count, batch))
        }
        if len(rates) > 1:
            found.append(Scaling(batch, rates))
    return found


def fixed_per_device(series: Series) -> list[Scaling]:
    """As much work on each as one had: the global batch grows with the devices."""
    found = []
    for cell in series.line(1):
        rates = {
            count: more.samples_per_second / cell.samples_per_second
            for count in series.device_counts
            if (more := series.at(count, cell.batch * count))
        }
        if len(rates) > 1:
            found.append(Scaling(cell.batch, rates))
    return found
