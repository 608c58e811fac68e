"""Speed-ups over one device: the best of each device count, and the cells that choke."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scalewise.findings.cell import Series
from scalewise.findings.finding import Finding, listed

TELLABLE = 0.02
"""A difference below this is none: timings are not better than that."""
WORTH_SAYING = 0.1
"""An uncertainty above this stands beside the figure."""


@dataclass(frozen=True)
class Speedup:
    """A cell beside one device at the same global batch."""

    devices: int
    batch: int
    batch_per_device: int
    speedup: float
    slower: bool
    """Beyond doubt, as is the next."""
    faster: bool
    uncertainty: float = 0.0
    """What the two timings leave open, as a fraction."""

    @property
    def undecided(self) -> bool:
        """Whether it may gain though it is not sure to."""
        return not (self.slower or self.faster) and self.speedup * (1 + self.uncertainty) > 1 + TELLABLE

    @property
    def text(self) -> str:
        """'1.52x', or '1.52x (± 30%)' where little is certain."""
        if math.isinf(self.uncertainty):
            return f"{self.speedup:.2f}x (timed once)"
        return f"{self.speedup:.2f}x" + (f" (± {self.uncertainty:.0%})" if self.uncertainty > WORTH_SAYING else "")

    @property
    def at_least(self) -> float:
        """The lower end of its interval: a cell that is all noise is not the best one."""
        return self.speedup / (1 + self.uncertainty)

    @property
    def efficiency(self) -> float:
        return self.speedup / self.devices


@dataclass(frozen=True)
class BestSpeedups(Finding):
    """Of each device count, over its batches."""

    best: tuple[Speedup, ...]
    over_best_single: dict[int, float]
    """Device count -> its fastest epoch beside the fastest of one device, each at the batch that suits it."""
    best_single_batch: int

    @property
    def sentence(self) -> str:
        best = listed([f"{each.text} on {each.devices} (batch {each.batch})" for each in self.best])
        ratios = listed([f"{ratio:.2f}x" for ratio in self.over_best_single.values()])
        return f"at best {best}; beside one device at its best batch, {self.best_single_batch}: {ratios}"


@dataclass(frozen=True)
class Chokes(Finding):
    """Which cells are slower than one device."""

    cells: int
    """With several devices and a single-device cell to compare with."""
    gaining: int
    choking: tuple[Speedup, ...]
    """The worst first."""
    undecided: int = 0

    @property
    def never_gains(self) -> bool:
        return len(self.choking) == self.cells

    @property
    def sentence(self) -> str:
        if self.cells == 1:
            return self._of_one_cell
        if not self.choking:
            if self.gaining:
                if self.gaining == self.cells:
                    return f"{'both' if self.cells == 2 else f'all {self.cells}'} cells are faster than one device"
                return f"no cell of {self.cells} is slower than one device, and {_are(self.gaining)} faster"
            return f"none of {self.cells} cells is faster or slower than one device beyond doubt"
        worst, least = self.choking[0], self.choking[-1]
        times = f"{1 / worst.speedup:.1f} times as long"
        if len(self.choking) > 1:
            times = f"{1 / least.speedup:.1f} to {times}"
        where = f"worst on {worst.devices} devices at batch {worst.batch}"
        if self.never_gains:
            every = "both cells" if self.cells == 2 else f"all {self.cells} cells"
            return f"never gains from more devices: {every} take {times} as one device, {where}"
        choke = "chokes: it takes" if len(self.choking) == 1 else "choke: they take"
        chokes = f"{len(self.choking)} of {self.cells} cells {choke} {times} as one device, {where}"
        open_question = f", of {self.undecided} it cannot be told" if self.undecided else ""
        return f"{chokes}; {_are(self.gaining)} faster{open_question}"

    @property
    def _of_one_cell(self) -> str:
        if not self.choking:
            told = "faster" if self.gaining else "not surely faster or slower"
            return f"the one cell on several devices is {told} than one device"
        [cell] = self.choking
        return (
            f"the one cell on several devices takes {1 / cell.speedup:.1f} times as long as one device "
            f"({cell.devices} devices at batch {cell.batch})"
        )


def speedups(series: Series) -> list[Speedup]:
    """Every cell on several devices that has a baseline."""
    return [
        Speedup(
            cell.devices,
            cell.batch,
            cell.batch_per_device,
            one.epoch_seconds / cell.epoch_seconds,
            slower=cell.surely_slower_than(one, TELLABLE),
            faster=one.surely_slower_than(cell, TELLABLE),
            uncertainty=cell.open_beside(one),
        )
        for one, cell in series.pairs
    ]


def best_speedups(series: Series) -> BestSpeedups | None:
    """None without pairs to compare."""
    every = speedups(series)
    if not every:
        return None
    counts = sorted({each.devices for each in every})
    single = min(series.line(1), key=lambda cell: cell.epoch_seconds)
    return BestSpeedups(
        series.name,
        tuple(
            max((each for each in every if each.devices == count), key=lambda each: (each.at_least, each.speedup))
            for count in counts
        ),
        {count: single.epoch_seconds / min(cell.epoch_seconds for cell in series.line(count)) for count in counts},
        single.batch,
    )


def chokes(series: Series) -> Chokes | None:
    """None without pairs to compare."""
    every = sorted(speedups(series), key=lambda each: each.speedup)
    if not every:
        return None
    return Chokes(
        series.name,
        len(every),
        sum(each.faster for each in every),
        tuple(each for each in every if each.slower),
        sum(each.undecided for each in every),
    )


def _are(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'}"
