"""Whether several devices are all the same: two as good as four."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from scalewise.findings.cell import Series
from scalewise.findings.finding import Finding, listed

EQUAL_WITHIN = 0.05


@dataclass(frozen=True)
class Equality(Finding):
    """Epochs of the counts above one, compared at the batches they share."""

    device_counts: tuple[int, ...]
    batches: int
    median_spread: float
    """Slowest over fastest count, less one: the median over the batches."""
    worst_spread: float
    worst_batch: int

    @property
    def equal(self) -> bool:
        return self.worst_spread <= EQUAL_WITHIN

    @property
    def telling(self) -> bool:
        return self.equal

    @property
    def sentence(self) -> str:
        counts = listed([str(count) for count in self.device_counts])
        if self.equal:
            return (
                f"{counts} devices take the same time, within {self.worst_spread:.1%} "
                f"at every one of {self.batches} batches"
            )
        return (
            f"{counts} devices differ, by {self.median_spread:.0%} in the median "
            f"and {self.worst_spread:.0%} at batch {self.worst_batch}"
        )


def equality(series: Series) -> Equality | None:
    """None with fewer than two counts above one."""
    counts = [count for count in series.device_counts if count > 1]
    spreads: dict[int, float] = {}
    for batch in series.batches:
        cells = [cell for count in counts if (cell := series.at(count, batch))]
        if len(cells) == len(counts) > 1:
            seconds = [cell.epoch_seconds for cell in cells]
            spreads[batch] = max(seconds) / min(seconds) - 1
    if not spreads:
        return None
    worst = max(spreads, key=lambda batch: spreads[batch])
    return Equality(series.name, tuple(counts), len(spreads), median(spreads.values()), spreads[worst], worst)
