"""How far predictions are off, table by table, as `scalewise validate` shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from scalewise.results.printable import Printable
from scalewise.validation.cell import Cell, choices_of, decisions_of, errors_of
from scalewise.validation.table import Table

COLUMNS = ("table", "cells", "median", "90 %", "worst", "inside", "chokes", "false", "linear", "bytes")
INSIDE = (85, 97)
LEGEND = (
    "Errors in percent of what was measured, without sign: the median, what 90 % of the cells stay within, the worst. "
    "inside: measured values within their 90 % interval. chokes: cells slower than one device, foreseen of all there "
    "are; false: alarms beyond them. linear, bytes: the median error of two naive rules, linear scaling and bytes over "
    "the links' specification."
)


@dataclass(frozen=True)
class Validation(Printable):
    tables: Sequence[Table]

    def to_json(self) -> dict[str, Any]:
        return {
            "tables": [table.to_json() for table in self.tables],
            "inside_interval_percent": {"all_cells": self.inside_percent, "mean_of_tables": self.inside_by_table},
        }

    @property
    def inside_percent(self) -> float:
        """Of all cells; large tables count for more."""
        cells = [cell for table in self.tables for cell in table.cells]
        return 100 * sum(cell.inside for cell in cells) / len(cells)

    @property
    def inside_by_table(self) -> float:
        return fmean(table.inside_percent for table in self.tables)

    def __rich__(self) -> RenderableType:
        grid = Grid(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
        for title in COLUMNS:
            grid.add_column(title, justify="left" if title == "table" else "right", no_wrap=title != "table")
        for table in self.tables:
            naive = [Text(f"{table.baseline_error(name):.1f}", "dim") for name in table.baselines]
            grid.add_row(Text(table.name, "bold"), *_figures(table.cells), *_chokes(table.cells), *naive)
            for part, cells in table.parts.items():
                grid.add_row(*(Text(str(text), "dim") for text in (f"  {part}", *_figures(cells))))
        notes = [Text.assemble((f"{table.name}: ", "bold"), _note(table), style="dim") for table in self.tables]
        honest = INSIDE[0] <= self.inside_percent <= INSIDE[1]
        inside = Text(
            f"Inside their 90 % interval: {self.inside_percent:.0f} % of all cells, {self.inside_by_table:.0f} % in "
            f"the mean of tables; {INSIDE[0]} to {INSIDE[1]} % would be honest.",
            "green" if honest else "red",
        )
        return Group(grid, Text(), inside, Text(), Text(LEGEND, "dim"), Text(), *notes)


def _figures(cells: Sequence[Cell]) -> list[str]:
    errors = errors_of(cells)
    inside = 100 * sum(cell.inside for cell in cells) / len(cells)
    return [f"{len(cells):,}", f"{errors.median:.1f}", f"{errors.p90:.1f}", f"{errors.worst:.1f}", f"{inside:.0f}"]


def _chokes(cells: Sequence[Cell]) -> tuple[str, str]:
    decisions = decisions_of(cells)
    return f"{decisions.foreseen}/{decisions.chokes}", str(decisions.alarms - decisions.foreseen)


def _note(table: Table) -> Text:
    """What was hoped for, and whether it came true; what was fitted."""
    errors = errors_of(table.cells)
    values = {"median": errors.median, "p90": errors.p90, "worst": errors.worst}
    note = Text("wanted: " if table.targets else "")
    for name, target in table.targets.items():
        met = values[name] <= target
        what = f"{'90 %' if name == 'p90' else name} ≤ {target:g} ({'met' if met else 'missed'}), "
        note.append(what, "green" if met else "red")
    choices = choices_of(table.cells)
    if choices.of:
        note.append(f"the best strategy foreseen in {choices.right} of {choices.of} choices, ")
    return note.append(f"fitted: {table.fitted}.")
