"""Whether several devices are all the same: two as good as four."""

from __future__ import annotations

import math
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
    open_question: float = 0.0
    """What the timings leave open at the batch where that and the spread together are largest."""
    different: int = 0
    """Batches at which the counts surely differ."""

    @property
    def equal(self) -> bool:
        """Beyond doubt; neither this nor `different` where the noise leaves it open."""
        return not self.different and self.worst_spread + self.open_question <= EQUAL_WITHIN

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
        if not self.different:
            noise = "some were timed once" if math.isinf(self.open_question) else f"± {self.open_question:.0%}"
            return (
                f"{counts} devices may or may not take the same time: {self.worst_spread:.0%} apart at batch "
                f"{self.worst_batch}, {noise}"
            )
        return (
            f"{counts} devices differ, by {self.median_spread:.0%} in the median "
            f"and {self.worst_spread:.0%} at batch {self.worst_batch}"
        )


def equality(series: Series) -> Equality | None:
    """None with fewer than two counts above one."""
    counts = [count for count in series.device_counts if count > 1]
    spreads: dict[int, float] = {}
    doubts: dict[int, float] = {}
    different = 0
    for batch in series.batches:
        cells = [cell for count in counts if (cell := series.at(count, batch))]
        if len(cells) == len(counts) > 1:
            fastest, slowest = (pick(cells, key=lambda cell: cell.epoch_seconds) for pick in (min, max))
            spreads[batch] = slowest.epoch_seconds / fastest.epoch_seconds - 1
            doubts[batch] = slowest.open_beside(fastest)
            different += slowest.surely_slower_than(fastest, EQUAL_WITHIN)
    if not spreads:
        return None
    worst = max(spreads, key=lambda batch: spreads[batch] + (0 if different else doubts[batch]))
    middle = median(spreads.values())
    return Equality(series.name, tuple(counts), len(spreads), middle, spreads[worst], worst, doubts[worst], different)
