"""Predictions against one table of measured figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scalewise.validation.cell import Cell, choices_of, decisions_of, errors_of

InSample = Literal["no", "partly", "yes", "other models", "other cells"]


@dataclass(frozen=True)
class Table:
    """A row of `scalewise validate`."""

    name: str
    cells: Sequence[Cell]
    in_sample: InSample
    """Whether constants were fitted on these very cells."""
    fitted: str
    """Which, and on what."""
    source: str
    targets: dict[str, float] = field(default_factory=dict)
    """What was hoped for: the most percent, by the name of the figure."""
    parts: dict[str, Sequence[Cell]] = field(default_factory=dict)
    """The same cells by strategy or model."""

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
            "decisions_right_percent": 100 * decisions.right / len(self.cells),
            "chokes": decisions.chokes,
            "choke_precision_percent": decisions.precision_percent,
            "choke_recall_percent": decisions.recall_percent,
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
        """The median, in percent."""
        return errors_of(self.cells, lambda cell: cell.baselines[name]).median

    @property
    def inside_percent(self) -> float:
        return 100 * sum(cell.inside for cell in self.cells) / len(self.cells)


def by(cells: Sequence[Cell], part: Sequence[str]) -> dict[str, Sequence[Cell]]:
    """Cells by the name that each goes under, in order of appearance."""
    made: dict[str, list[Cell]] = {}
    for cell, name in zip(cells, part, strict=True):
        made.setdefault(name, []).append(cell)
    return dict(made)
