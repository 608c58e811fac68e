"""Speed-ups over one device, cells that choke, and device counts that take the same time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from scalewise.reporting.finding import Finding, listed
from scalewise.reporting.series import Cell, Series

SMALLEST_DIFFERENCE = 0.02
"""Smallest relative difference of two times that counts: timings are no more accurate than this."""
SHOWN_UNCERTAINTY = 0.1
"""Relative uncertainty above which it is printed beside the speed-up."""


@dataclass(frozen=True)
class Speedup:
    """Speed-up of a cell over one device at the same global batch."""

    devices: int
    batch: int
    batch_per_device: int
    speedup: float
    slower: bool
    """Whether the cell is slower than one device by more than the uncertainty."""
    faster: bool
    """Whether the cell is faster than one device by more than the uncertainty."""
    uncertainty: float = 0.0
    """Relative uncertainty of the speed-up, from both timings."""

    @property
    def undecided(self) -> bool:
        """Whether a speed-up is possible but not certain."""
        return not (self.slower or self.faster) and self.speedup * (1 + self.uncertainty) > 1 + SMALLEST_DIFFERENCE

    @property
    def text(self) -> str:
        """The speed-up as '1.52x', or '1.52x (± 30%)' if it is uncertain."""
        if math.isinf(self.uncertainty):
            return f"{self.speedup:.2f}x (timed once)"
        return f"{self.speedup:.2f}x" + (f" (± {self.uncertainty:.0%})" if self.uncertainty > SHOWN_UNCERTAINTY else "")

    @property
    def at_least(self) -> float:
        """Lower end of the speed-up's interval, by which the best cell is chosen."""
        return self.speedup / (1 + self.uncertainty)

    @property
    def efficiency(self) -> float:
        return self.speedup / self.devices


@dataclass(frozen=True)
class BestSpeedups(Finding):
    """Batch size with the best speed-up of each device count, chosen by the lower end of the interval."""

    best: tuple[Speedup, ...]
    over_best_single: dict[int, float]
    """Speed-up by device count when one device and several devices each use their fastest batch."""
    best_single_batch: int
    """Fastest batch of one device."""
    too_noisy: tuple[Speedup, ...] = ()
    """Speed-ups above the best of their device count that are too uncertain to count."""

    @property
    def headline(self) -> str:
        return f"best speed-up: {_cells_text(self.best)}"

    @property
    def sentence(self) -> str:
        ratios = listed([f"{ratio:.2f}x" for ratio in self.over_best_single.values()])
        uncertain = f"; too uncertain: {_cells_text(self.too_noisy)}" if self.too_noisy else ""
        baseline = f"compared with one device at its best batch ({self.best_single_batch})"
        return f"{self.headline}{uncertain}; {baseline}: {ratios}"


@dataclass(frozen=True)
class Chokes(Finding):
    """Cells on several devices that are slower than one device."""

    cells: int
    """Number of cells on several devices that have a single-device baseline."""
    gaining: int
    """Number of cells that are faster than one device."""
    choking: tuple[Speedup, ...]
    """Cells that are slower than one device, the slowest first."""
    undecided: int = 0
    """Number of cells for which a speed-up is possible but not certain."""

    @property
    def never_gains(self) -> bool:
        return len(self.choking) == self.cells

    @property
    def headline(self) -> str:
        if self.cells == 1:
            return self._one_cell_sentence
        all_cells = "both cells" if self.cells == 2 else f"all {self.cells} cells"
        if not self.choking:
            if self.gaining == self.cells:
                return f"{all_cells} are faster than one device"
            if self.gaining:
                return f"{self.gaining} of {self.cells} cells {_are(self.gaining)} faster than one device, none slower"
            return f"{all_cells} are uncertain: the intervals include no speed-up"
        slowest, least_slow = self.choking[0], self.choking[-1]
        times = f"{1 / slowest.speedup:.1f} times as long"
        if len(self.choking) > 1:
            times = f"{1 / least_slow.speedup:.1f} to {times}"
        if self.never_gains:
            return f"more devices are never faster: {all_cells} take {times} as one device"
        chokes = "chokes: it takes" if len(self.choking) == 1 else "choke: they take"
        return f"{len(self.choking)} of {self.cells} cells {chokes} {times} as one device"

    @property
    def sentence(self) -> str:
        if self.cells == 1 or not self.choking:
            return self.headline
        slowest = self.choking[0]
        chokes = f"{self.headline} (slowest: {slowest.devices} devices at batch {slowest.batch})"
        if self.never_gains:
            return chokes
        uncertain = f", {self.undecided} {_are(self.undecided)} uncertain" if self.undecided else ""
        return f"{chokes}; {self.gaining} {_are(self.gaining)} faster{uncertain}"

    @property
    def _one_cell_sentence(self) -> str:
        if self.gaining:
            return "the only cell on several devices is faster than one device"
        if not self.choking:
            return "the only cell on several devices is uncertain: the interval of the speed-up includes 1"
        [cell] = self.choking
        return (
            f"the only cell on several devices takes {1 / cell.speedup:.1f} times as long as one device "
            f"({cell.devices} devices at batch {cell.batch})"
        )


def speedups(series: Series) -> list[Speedup]:
    """Return the speed-up of every cell on several devices that has a single-device baseline."""
    return [
        Speedup(
            cell.devices,
            cell.batch,
            cell.batch_per_device,
            one.epoch_seconds / cell.epoch_seconds,
            slower=cell.surely_slower_than(one, SMALLEST_DIFFERENCE),
            faster=one.surely_slower_than(cell, SMALLEST_DIFFERENCE),
            uncertainty=cell.ratio_uncertainty(one),
        )
        for one, cell in series.pairs
    ]


def best_speedups(series: Series) -> BestSpeedups | None:
    """Find the best speed-up of each device count; None if no cell has a baseline."""
    all_speedups = speedups(series)
    if not all_speedups:
        return None
    counts = sorted({speedup.devices for speedup in all_speedups})
    single = min(series.line(1), key=_slowest_likely)
    best, highest = [], []
    for count in counts:
        same_count = [speedup for speedup in all_speedups if speedup.devices == count]
        best.append(max(same_count, key=lambda speedup: (speedup.at_least, speedup.speedup)))
        highest.append(max(same_count, key=lambda speedup: speedup.speedup))
    return BestSpeedups(
        series.name,
        tuple(best),
        {count: single.epoch_seconds / min(series.line(count), key=_slowest_likely).epoch_seconds for count in counts},
        single.batch,
        tuple(high for high, chosen in zip(highest, best, strict=True) if high.speedup > chosen.speedup),
    )


def _cells_text(speedups: Sequence[Speedup]) -> str:
    """Format speed-ups with their cells: '1.52x on 2 devices (batch 10) and 2.10x on 4 (batch 20)'."""
    texts = [
        f"{speedup.text} on {speedup.devices}{' devices' if number == 0 else ''} (batch {speedup.batch})"
        for number, speedup in enumerate(speedups)
    ]
    return listed(texts)


def _slowest_likely(cell: Cell) -> tuple[float, float]:
    """Return a sort key: the upper end of the epoch time's interval, then the epoch time itself."""
    return cell.epoch_seconds * (1 + cell.uncertainty), cell.epoch_seconds


def chokes(series: Series) -> Chokes | None:
    """Count the cells that are faster and slower than one device; None if no cell has a baseline."""
    all_speedups = sorted(speedups(series), key=lambda speedup: speedup.speedup)
    if not all_speedups:
        return None
    return Chokes(
        series.name,
        len(all_speedups),
        sum(speedup.faster for speedup in all_speedups),
        tuple(speedup for speedup in all_speedups if speedup.slower),
        sum(speedup.undecided for speedup in all_speedups),
    )


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


EQUAL_WITHIN = 0.05


@dataclass(frozen=True)
class Equality(Finding):
    """Whether all device counts above one take the same time, at the batch sizes that they share."""

    device_counts: tuple[int, ...]
    batches: int
    median_spread: float
    """Median over the batches of (slowest epoch / fastest epoch - 1)."""
    worst_spread: float
    """Spread at `worst_batch`."""
    worst_batch: int
    """Batch with the largest spread; if no difference is certain, with the largest spread plus uncertainty."""
    open_question: float = 0.0
    """Relative uncertainty at `worst_batch`."""
    different: int = 0
    """Number of batches at which the device counts differ by more than the uncertainty."""

    @property
    def equal(self) -> bool:
        """Whether the times are certainly equal within 5%; if uncertain, this is False and `different` is 0."""
        return not self.different and self.worst_spread + self.open_question <= EQUAL_WITHIN

    @property
    def notable(self) -> bool:
        return self.equal

    @property
    def sentence(self) -> str:
        counts = listed([str(count) for count in self.device_counts])
        if self.equal:
            return f"{counts} devices take the same time at every batch, within {self.worst_spread:.1%}"
        if not self.different:
            noise = "some were timed once" if math.isinf(self.open_question) else f"± {self.open_question:.0%}"
            return (
                f"it is uncertain whether {counts} devices take the same time: they differ by "
                f"{self.worst_spread:.0%} at batch {self.worst_batch} ({noise})"
            )
        return (
            f"{counts} devices take different times: the slowest {self.median_spread:.0%} longer than the fastest "
            f"(median over batches), at most {self.worst_spread:.0%} longer (batch {self.worst_batch})"
        )


def equality(series: Series) -> Equality | None:
    """Compare the device counts above one with each other; None with fewer than two."""
    counts = [count for count in series.device_counts if count > 1]
    spreads: dict[int, float] = {}
    uncertainties: dict[int, float] = {}
    different = 0
    for batch in series.batches:
        cells = [cell for count in counts if (cell := series.at(count, batch))]
        if len(cells) == len(counts) > 1:
            fastest, slowest = (pick(cells, key=lambda cell: cell.epoch_seconds) for pick in (min, max))
            spreads[batch] = slowest.epoch_seconds / fastest.epoch_seconds - 1
            uncertainties[batch] = slowest.ratio_uncertainty(fastest)
            different += slowest.surely_slower_than(fastest, EQUAL_WITHIN)
    if not spreads:
        return None
    worst = max(spreads, key=lambda batch: spreads[batch] + (0 if different else uncertainties[batch]))
    middle = median(spreads.values())
    return Equality(
        series.name, tuple(counts), len(spreads), middle, spreads[worst], worst, uncertainties[worst], different
    )


@dataclass(frozen=True)
class Scaling:
    """Throughput relative to one device by device count, for one batch size."""

    batch: int
    """Global batch in `fixed_global`, batch per device in `fixed_per_device`."""
    speedups: dict[int, float]
    uncertainty: dict[int, float] = field(default_factory=dict)
    """Relative uncertainty of the speed-up by device count."""


def _relative_to_one(batch: int, one: Cell, several: Mapping[int, Cell]) -> Scaling:
    """Divide the throughput of each cell by that of one device; one device itself has no uncertainty."""
    return Scaling(
        batch,
        {count: cell.samples_per_second / one.samples_per_second for count, cell in several.items()},
        {count: cell.ratio_uncertainty(one) for count, cell in several.items() if cell is not one},
    )


def fixed_global(series: Series) -> list[Scaling]:
    """Strong scaling: speed-ups by device count at a fixed global batch, one item per batch."""
    by_batch: dict[int, list[Speedup]] = defaultdict(list)
    for speedup in speedups(series):
        by_batch[speedup.batch].append(speedup)
    return [
        Scaling(
            batch,
            {1: 1.0} | {speedup.devices: speedup.speedup for speedup in same_batch},
            {speedup.devices: speedup.uncertainty for speedup in same_batch},
        )
        for batch, same_batch in sorted(by_batch.items())
    ]


def fixed_per_device(series: Series) -> list[Scaling]:
    """Weak scaling: throughput by device count at a fixed batch per device, one item per batch."""
    scalings = []
    for one in series.line(1):
        cells = {count: cell for count in series.device_counts if (cell := series.at(count, one.batch * count))}
        if len(cells) > 1:
            scalings.append(_relative_to_one(one.batch, one, cells))
    return scalings
