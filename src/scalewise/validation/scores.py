"""Scores of predictions against measurements: errors, detected chokes and choices of a strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal


@dataclass(frozen=True)
class Cell:
    """One measured and predicted time, in seconds of an epoch, a step or a sample (the same throughout a table)."""

    label: str
    measured: float
    predicted: float
    low: float
    high: float
    alone: float
    """Measured time of one device for the same work; 0 if there is none. A slower cell is a choke."""
    baselines: dict[str, float]
    """Predictions of naive rules, by name."""
    devices: int = 0
    """Number of devices; 0 if efficiency makes no sense, as for a single collective."""
    rivals: str = ""
    """Name of the group of cells that differ only in the strategy; empty if there are no others."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool:
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class Errors:
    """Absolute errors in percent of the measured times."""

    median: float
    p90: float
    worst: float


def errors_of(cells: Sequence[Cell], predicted: Callable[[Cell], float] = lambda cell: cell.predicted) -> Errors:
    ordered = sorted(100 * abs(predicted(cell) / cell.measured - 1) for cell in cells)
    return Errors(median(ordered), ordered[-(-9 * len(ordered) // 10) - 1], ordered[-1])


@dataclass(frozen=True)
class Decisions:
    """Counts of measured and predicted chokes (cells slower than one device)."""

    right: int
    """Cells whose prediction agrees with the measurement about whether they are slower than one device."""
    chokes: int
    """Measured chokes."""
    predicted_chokes: int
    """Measured chokes that were predicted."""
    alarms: int
    """Predicted chokes, correct or not."""
    cells: int
    """Cells with a time of one device."""

    @property
    def right_percent(self) -> float | None:
        return 100 * self.right / self.cells if self.cells else None

    @property
    def precision_percent(self) -> float | None:
        return 100 * self.predicted_chokes / self.alarms if self.alarms else None

    @property
    def recall_percent(self) -> float | None:
        return 100 * self.predicted_chokes / self.chokes if self.chokes else None


def decisions_of(cells: Sequence[Cell]) -> Decisions:
    cells = [cell for cell in cells if cell.alone]
    chokes = [cell.measured >= cell.alone for cell in cells]
    alarms = [cell.predicted >= cell.alone for cell in cells]
    return Decisions(
        right=sum(choke == alarm for choke, alarm in zip(chokes, alarms, strict=True)),
        chokes=sum(chokes),
        predicted_chokes=sum(choke and alarm for choke, alarm in zip(chokes, alarms, strict=True)),
        alarms=sum(alarms),
        cells=len(cells),
    )


NEAR = 0.05
"""Relative distance from a threshold within which a cell is counted apart, because its measurement decides nothing."""
THRESHOLDS: dict[str, float | None] = {
    "slower than one device": None,
    "below 70% efficiency": 0.7,
    "below 90% efficiency": 0.9,
}
"""Decisions by name, with the scaling efficiency below which the answer is yes; None: that of one device's speed."""


@dataclass(frozen=True)
class ThresholdDecisions:
    """Recall and precision of one decision. Cells measured within 5 % of the threshold are counted apart."""

    cells: int
    measured: int
    """Cells that are measured below the threshold."""
    foreseen: int
    """Cells measured and predicted below the threshold."""
    alarms: int
    """Cells predicted below the threshold, rightly or not."""
    near: int
    """Cells measured within 5 % of the threshold."""
    near_right: int
    """Cells within 5 % of the threshold whose prediction is on the measured side."""

    @property
    def recall_percent(self) -> float | None:
        return 100 * self.foreseen / self.measured if self.measured else None

    @property
    def precision_percent(self) -> float | None:
        return 100 * self.foreseen / self.alarms if self.alarms else None

    def to_json(self) -> dict[str, Any]:
        return {
            "cells": self.cells,
            "measured": self.measured,
            "foreseen": self.foreseen,
            "alarms": self.alarms,
            "recall_percent": self.recall_percent,
            "precision_percent": self.precision_percent,
            "near_threshold": {"cells": self.near, "right": self.near_right},
        }


def threshold_decisions(cells: Sequence[Cell]) -> dict[str, ThresholdDecisions]:
    """Score the three decisions on the cells of several devices."""
    several = [cell for cell in cells if cell.devices > 1]
    return {name: _decided(several, efficiency) for name, efficiency in THRESHOLDS.items()} if several else {}


def _decided(cells: Sequence[Cell], efficiency: float | None) -> ThresholdDecisions:
    clear: list[tuple[bool, bool]] = []
    near: list[tuple[bool, bool]] = []
    for cell in cells:
        limit = cell.alone if efficiency is None else cell.alone / (cell.devices * efficiency)
        group = near if abs(cell.measured / limit - 1) <= NEAR else clear
        group.append((cell.measured > limit, cell.predicted > limit))
    return ThresholdDecisions(
        cells=len(clear),
        measured=sum(measured for measured, _ in clear),
        foreseen=sum(measured and predicted for measured, predicted in clear),
        alarms=sum(predicted for _, predicted in clear),
        near=len(near),
        near_right=sum(measured == predicted for measured, predicted in near),
    )


NEARLY_BEST = 1.03
"""Largest ratio of the chosen strategy's time to the best one's that counts as a correct choice."""


@dataclass(frozen=True)
class Choices:
    """How often the strategy with the fastest prediction is measured to be the fastest, or nearly so."""

    right: int
    of: int


def choices_of(cells: Sequence[Cell]) -> Choices:
    rivals: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.rivals:
            rivals.setdefault(cell.rivals, []).append(cell)
    several = [group for group in rivals.values() if len(group) > 1]
    right = [
        min(group, key=lambda cell: cell.predicted).measured <= NEARLY_BEST * min(cell.measured for cell in group)
        for group in several
    ]
    return Choices(sum(right), len(several))


InSample = Literal["no", "partly", "yes", "other models", "other cells"]


@dataclass(frozen=True)
class Table:
    """Scored cells of one source: a table of `scalewise validate`."""

    name: str
    cells: Sequence[Cell]
    in_sample: InSample
    """Whether constants were fitted to the scored cells, or to which others."""
    fitted: str
    """Which constants were fitted, and to what."""
    source: str
    targets: dict[str, float] = field(default_factory=dict)
    """Largest error in percent that was aimed for, by the name of the score."""
    parts: dict[str, Sequence[Cell]] = field(default_factory=dict)
    """The cells, grouped by strategy or model."""

    def to_json(self) -> dict[str, Any]:
        errors, decisions, choices = errors_of(self.cells), decisions_of(self.cells), choices_of(self.cells)
        return {
            "name": self.name,
            "cells": len(self.cells),
            "in_sample": self.in_sample,
            "fitted": self.fitted,
            "median_error_percent": errors.median,
            "p90_error_percent": errors.p90,
            "worst_error_percent": errors.worst,
            "inside_interval_percent": self.inside_percent,
            "decisions_right_percent": decisions.right_percent,
            "chokes": decisions.chokes,
            "choke_precision_percent": decisions.precision_percent,
            "choke_recall_percent": decisions.recall_percent,
            "decisions": {name: decision.to_json() for name, decision in threshold_decisions(self.cells).items()},
            "inside_interval_low_efficiency_percent": self.inside_low_efficiency_percent,
            "best_strategy": {"right": choices.right, "of": choices.of},
            "baselines": {name: {"median_error_percent": self.baseline_error(name)} for name in self.baselines},
            "targets": self.targets,
            "parts": {
                part: {"cells": len(cells), "median_error_percent": errors_of(cells).median}
                for part, cells in self.parts.items()
            },
            "source": self.source,
        }

    @property
    def baselines(self) -> list[str]:
        return list(self.cells[0].baselines)

    def baseline_error(self, name: str) -> float:
        """Return the median error of a naive rule in percent."""
        return errors_of(self.cells, lambda cell: cell.baselines[name]).median

    @property
    def inside_percent(self) -> float:
        return 100 * sum(cell.inside for cell in self.cells) / len(self.cells)

    @property
    def inside_low_efficiency_percent(self) -> float | None:
        """Percent of cells inside their interval in the half with the lowest measured efficiency."""
        several = [cell for cell in self.cells if cell.devices > 1]
        several.sort(key=lambda cell: cell.alone / (cell.devices * cell.measured))
        half = several[: (len(several) + 1) // 2]
        return 100 * sum(cell.inside for cell in half) / len(half) if half else None


def by(cells: Sequence[Cell], part: Sequence[str]) -> dict[str, Sequence[Cell]]:
    """Group cells by the name in the same position, in order of appearance."""
    groups: dict[str, list[Cell]] = {}
    for cell, name in zip(cells, part, strict=True):
        groups.setdefault(name, []).append(cell)
    return dict(groups)
