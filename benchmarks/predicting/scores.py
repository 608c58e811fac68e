"""Errors of the predictions, as numbers and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from rich.console import Console
from rich.table import Table

from predicting.cells import ALONE, Cell, Key
from scalewise.core.units import seconds_text

Scores = dict[str, float | int | None]
SECONDS = ("predicted", "low", "high", "alone_predicted", "measured", "alone_measured")


def scores(cells: Sequence[Cell]) -> Scores:
    errors = sorted(100 * abs(cell.error) for cell in cells)
    choked = [cell for cell in cells if cell.choked]
    alarms = [cell for cell in cells if cell.foreseen_choke]
    foreseen = [cell for cell in choked if cell.foreseen_choke]
    return {
        "cells": len(cells),
        "median_error_percent": median(errors),
        "p90_error_percent": errors[min(len(errors) - 1, int(0.9 * len(errors)))],
        "worst_error_percent": errors[-1],
        "bias_percent": 100 * median(cell.error for cell in cells),
        "choking": len(choked),
        "choke_recall_percent": 100 * len(foreseen) / len(choked) if choked else None,
        "false_alarm_percent": 100 * (len(alarms) - len(foreseen)) / len(alarms) if alarms else None,
        "inside_interval_percent": 100 * sum(cell.holds for cell in cells) / len(cells),
    }


def scored(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.strategy != ALONE]


def show(cells: Sequence[Cell]) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("workload", "strategy", "link"):
        table.add_column(title, no_wrap=True)
    for title in ("devices", "batch", "predicted", "90% interval", "measured", "error", "one device", "choke"):
        table.add_column(title, justify="right", no_wrap=True)
    for cell in cells:
        table.add_row(
            cell.workload,
            cell.strategy,
            cell.link,
            str(cell.devices),
            str(cell.batch),
            seconds_text(cell.predicted),
            f"{seconds_text(cell.low)} - {seconds_text(cell.high)}" + ("" if cell.holds else " !"),
            seconds_text(cell.measured),
            f"{100 * cell.error:+.0f} %",
            seconds_text(cell.alone_measured),
            {(True, True): "foreseen", (True, False): "missed", (False, True): "false alarm"}.get(
                (cell.choked, cell.foreseen_choke), ""
            ),
        )
    Console(width=150, highlight=False).print(table)


def medians_of(rounds: Sequence[Sequence[Cell]]) -> list[Cell]:
    """Cells with the medians of their predictions and of their measurements over the rounds."""
    by_key: dict[Key, list[Cell]] = {}
    for cell in (cell for cells in rounds for cell in cells):
        by_key.setdefault(cell.key, []).append(cell)
    return [
        replace(cells[0], **{name: median(getattr(cell, name) for cell in cells) for name in SECONDS})
        for cells in by_key.values()
    ]


def show_scores(rounds: Sequence[Sequence[Cell]]) -> None:
    """Print scores of the medians over the rounds, of the rounds one by one, and of groups of cells."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("group")
    titles = ("cells", "median error", "p90", "worst", "bias", "choking", "foreseen", "false alarms", "in interval")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for name, members in _groups(rounds).items():
        if members:
            table.add_row(name, *_texts(scores(members)))
    Console(width=140, highlight=False).print(table)


def _groups(rounds: Sequence[Sequence[Cell]]) -> dict[str, list[Cell]]:
    medians = medians_of(rounds)
    cells = scored(medians)
    groups = {"all": cells}
    if len(rounds) > 1:
        groups["all, every round"] = [cell for round_cells in rounds for cell in scored(round_cells)]
    for key in ("workload", "strategy", "link", "devices"):
        values = dict.fromkeys(getattr(cell, key) for cell in cells)
        for value in values if len(values) > 1 else ():
            name = f"{value} devices" if key == "devices" else str(value)
            groups[name] = [cell for cell in cells if getattr(cell, key) == value]
    groups["(one device)"] = [cell for cell in medians if cell.strategy == ALONE]
    return groups


def _texts(values: Scores) -> list[str]:
    errors = ("median_error_percent", "p90_error_percent", "worst_error_percent")
    rates = ("choke_recall_percent", "false_alarm_percent", "inside_interval_percent")
    return [
        str(values["cells"]),
        *(f"{values[key]:.1f} %" for key in errors),
        f"{values['bias_percent']:+.0f} %",
        str(values["choking"]),
        *("-" if values[key] is None else f"{values[key]:.0f} %" for key in rates),
    ]
