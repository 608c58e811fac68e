"""One measured figure beside its prediction, and how far predictions are off over many of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Cell:
    """Seconds of an epoch, a step or a sample: whatever the table tells, throughout."""

    label: str
    measured: float
    predicted: float
    low: float
    high: float
    alone: float
    """One device on the same work, measured: more than this is a choke."""
    baselines: dict[str, float]
    """What simpler rules say."""
    rivals: str = ""
    """Cells of the same name differ in the strategy only; empty: there is nothing to choose from."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool:
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class Errors:
    """In percent of what was measured, whichever way."""

    median: float
    p90: float
    worst: float


def errors_of(cells: Sequence[Cell], predicted: Callable[[Cell], float] = lambda cell: cell.predicted) -> Errors:
    ordered = sorted(100 * abs(predicted(cell) / cell.measured - 1) for cell in cells)
    return Errors(median(ordered), ordered[-(-9 * len(ordered) // 10) - 1], ordered[-1])


@dataclass(frozen=True)
class Decisions:
    """Whether more devices were slower than one, foreseen and in truth."""

    right: int
    chokes: int
    foreseen: int
    alarms: int
    """Chokes that were foreseen, rightly or not."""

    @property
    def precision_percent(self) -> float | None:
        return 100 * self.foreseen / self.alarms if self.alarms else None

    @property
    def recall_percent(self) -> float | None:
        return 100 * self.foreseen / self.chokes if self.chokes else None


def decisions_of(cells: Sequence[Cell]) -> Decisions:
    chokes = [cell.measured >= cell.alone for cell in cells]
    alarms = [cell.predicted >= cell.alone for cell in cells]
    return Decisions(
        right=sum(choke == alarm for choke, alarm in zip(chokes, alarms, strict=True)),
        chokes=sum(chokes),
        foreseen=sum(choke and alarm for choke, alarm in zip(chokes, alarms, strict=True)),
        alarms=sum(alarms),
    )


AS_GOOD = 1.03
"""A choice is right if it takes at most so many times as long as the best."""


@dataclass(frozen=True)
class Choices:
    """How often the strategy that is predicted to be the fastest is, or nearly so."""

    right: int
    of: int


def choices_of(cells: Sequence[Cell]) -> Choices:
    rivals: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.rivals:
            rivals.setdefault(cell.rivals, []).append(cell)
    several = [group for group in rivals.values() if len(group) > 1]
    right = [
        min(group, key=lambda cell: cell.predicted).measured <= AS_GOOD * min(cell.measured for cell in group)
        for group in several
    ]
    return Choices(sum(right), len(several))
