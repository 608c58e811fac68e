"""Rows of advice as a table that fits a terminal of 80 columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby

from rich.table import Table

from scalewise.advice.rows import Row
from scalewise.results.units import seconds_text

MARKS = {"measured": "", "interpolated": "~", "extrapolated": "?"}
LEFT = ("strategy", "limit")
NAMES = 16
"""Columns that the name of a strategy has."""


def table_of(rows: Sequence[Row], best: Row, priced: bool) -> Table:
    """Of one global batch, or of one batch of each device."""
    columns = _columns(rows[0], priced)
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("strategy", *columns):
        table.add_column(title, justify="left" if title in LEFT else "right", no_wrap=True)
    for name, same in groupby(rows, key=lambda row: row.name):
        group, lines = list(same), folded(name)
        names = [*lines[: len(group) - 1], "\n".join(lines[len(group) - 1 :]), *[""] * len(group)]
        for row, shown in zip(group, names, strict=False):
            cells = [column(row) for column in columns.values()]
            table.add_row(shown, *cells, style="bold" if row is best else "")
    return table


def _columns(first: Row, priced: bool) -> dict[str, Callable[[Row], str]]:
    columns: dict[str, Callable[[Row], str]] = {"n": lambda row: str(row.prediction.devices)}
    if first.grown:
        columns["batch"] = lambda row: f"{row.prediction.batch}{MARKS[row.prediction.known]}"
    else:
        columns["each"] = lambda row: f"{row.prediction.batch_per_device}{MARKS[row.prediction.known]}"
    columns |= {"step": lambda row: short_seconds(row.prediction.seconds), "90 %": _reach}
    if first.grown:
        columns["per second"] = lambda row: _number(row.prediction.batch / row.prediction.seconds)
    elif first.epoch_known:
        columns["epoch"] = lambda row: short_seconds(row.prediction.epoch_seconds)
    columns["faster"] = lambda row: _number(row.gain)
    if not first.grown:
        columns["grown"] = lambda row: _number(row.speedup_per_device_batch)
    columns["limit"] = lambda row: row.prediction.bottleneck
    if priced and first.epoch_known:
        columns["cost"] = lambda row: dollars(row.cost_per_epoch)
    elif priced and not first.grown:
        columns["cost"] = lambda row: dollars(row.cost_per_1000_steps)
    return columns


def folded(name: str) -> list[str]:
    """Long names go on where their words begin: 'parameter-server' and '-async' below."""
    lines = [""]
    for word in re.split(r"(?=[:,-])", name):
        if lines[-1] and len(lines[-1]) + len(word) > NAMES:
            lines.append("")
        lines[-1] += word
    return lines


def _reach(row: Row) -> str:
    made = row.prediction
    return f"-{100 * (1 - made.low / made.seconds):.0f}+{100 * (made.high / made.seconds - 1):.0f}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def short_seconds(seconds: float) -> str:
    """Long ones in one unit: a table is narrow."""
    if seconds < 119.5:
        return seconds_text(seconds)
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:,.0f} h"


def dollars(cost: float | None) -> str:
    """'$0.02', '$345', '$12.3k', '$4.5M'."""
    if cost is None:
        return "-"
    if cost < 99.5:
        return f"${cost:.2f}"
    if cost < 999.5:
        return f"${cost:.0f}"
    return f"${cost / 1e3:.3g}k" if cost < 999.5e3 else f"${cost / 1e6:,.3g}M"
