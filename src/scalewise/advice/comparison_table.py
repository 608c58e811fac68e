"""Table of compared clusters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.text import Text

from scalewise.advice.rows import dollars, interval_text, short_seconds

if TYPE_CHECKING:
    from scalewise.advice.comparison import Candidate

WIDTHS = ((21, 16), (13, 10))
"""Widths of the names of clusters and strategies, the second if the table would exceed 80 columns."""
Columns = dict[str, Callable[["Candidate"], str]]


def _columns(candidates: Sequence[Candidate]) -> Columns:
    """Return a function per column that formats its cell of a candidate that fits."""
    epochs_known = candidates[0].best.epoch_known
    several_epochs = epochs_known and any(candidate.epochs != 1 for candidate in candidates)
    period = "time in total" if epochs_known else "time/ 1M samples"

    def time(candidate: Candidate) -> str:
        return short_seconds(candidate.time.predicted) if candidate.time else "-"

    def interval(candidate: Candidate) -> str:
        return interval_text(candidate.time.low, candidate.time.high) if candidate.time else "-"

    def energy(candidate: Candidate) -> str:
        kWh = candidate.energy_kWh
        if kWh is None:
            return "-"
        amount, unit = (1000 * kWh, "Wh") if kWh < 1 else (kWh, "kWh") if kWh < 1000 else (kWh / 1000, "MWh")
        return f"{amount:,.0f} {unit}" if amount >= 10 else f"{amount:.1f} {unit}"

    columns: Columns = {}
    if several_epochs:
        columns["time/ epoch"] = lambda candidate: short_seconds(candidate.epoch.predicted) if candidate.epoch else "-"
    columns[period] = time
    columns["90% interval"] = interval
    if any(candidate.price for candidate in candidates):
        if several_epochs:
            columns["cost/ epoch"] = lambda candidate: dollars(candidate.cost_per_epoch)
        columns["cost"] = lambda candidate: dollars(candidate.cost.predicted if candidate.cost else None)
    if any(candidate.energy_kWh is not None for candidate in candidates):
        columns["energy"] = energy
    if any(candidate.utilisation is not None for candidate in candidates):
        columns["MFU"] = lambda candidate: f"{100 * candidate.utilisation:.0f}%" if candidate.utilisation else "-"
    return columns


def comparison_table(candidates: Sequence[Candidate], recommended: Candidate | None) -> Text:
    """Lay out the candidates in 80 columns if possible, with two lines of headings."""
    wide, narrow = (_table(candidates, recommended, *widths) for widths in WIDTHS)
    return wide if max(map(len, wide.plain.splitlines())) <= 80 else narrow


def _table(
    candidates: Sequence[Candidate], recommended: Candidate | None, name_width: int, strategy_width: int
) -> Text:
    columns = _columns(candidates)
    headings = [("", "cluster"), ("", "best strategy")]
    headings += [(above, below) for above, _, below in (title.rpartition(" ") for title in columns)]
    lines: list[tuple[list[str], str]] = []
    for candidate in candidates:
        style = "bold" if candidate is recommended else ""
        names = wrap(candidate.name, name_width)
        if candidate.time is None:
            lines += [
                ([name, f"does not fit; fits: {candidate.remedy}" if not at else ""], style)
                for at, name in enumerate(names)
            ]
            continue
        devices = candidate.best.prediction.devices
        strategies = wrap(f"{candidate.best.name} on {devices}" if devices > 1 else candidate.best.name, strategy_width)
        for at in range(max(len(names), len(strategies))):
            cells = [part[at] if at < len(part) else "" for part in (names, strategies)]
            lines.append(([*cells, *([column(candidate) for column in columns.values()] if not at else [])], style))
    full = [cells for cells, _ in lines if len(cells) == len(headings)]
    widths = [max(map(len, texts)) for texts in zip(*(cells for cells in full), strict=True)] or [0] * len(headings)
    widths = [max(width, *map(len, heading)) for width, heading in zip(widths, headings, strict=True)]
    widths[0] = max(widths[0], *(len(cells[0]) for cells, _ in lines))
    text = Text(no_wrap=True, overflow="ellipsis")
    for line in range(2):
        text.append(_aligned([heading[line] for heading in headings], widths) + "\n", "dim")
    for cells, style in lines:
        text.append(_aligned(cells, widths) + "\n", style)
    text.right_crop(1)
    return text


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = [
        f"{cell:<{width}}" if number < 2 else f"{cell:>{width}}"
        for number, (cell, width) in enumerate(zip(cells, widths, strict=False))
    ]
    return " ".join(parts).rstrip()
