"""Where a step's seconds go, as a table with bars."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from scalewise.results.units import seconds_text

BAR = 40
"""Characters of a bar that stands for the whole step."""


def phase_table(phases: dict[str, float], title: str = "phase") -> Table:
    """One row per phase, in the order they happen."""
    total = sum(phases.values())
    table = Table(box=None, padding=(0, 2), header_style="dim", pad_edge=False)
    table.add_column(title)
    table.add_column("per step", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    for phase, seconds in phases.items():
        table.add_row(
            phase,
            seconds_text(seconds),
            f"{seconds / total:.0%}" if total else "-",
            Text("█" * round(BAR * seconds / total) if total else "", style="cyan"),
        )
    return table
