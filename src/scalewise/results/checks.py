"""What a machine has and what it lacks, as `scalewise doctor` shows it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.results.printable import Printable

MARKS = {"ok": Text("✓", style="green"), "missing": Text("·", style="yellow"), "bad": Text("✗", style="red")}


@dataclass(frozen=True)
class Check:
    """One finding; a missing thing says what it would allow and how to get it."""

    name: str
    status: Literal["ok", "missing", "bad"]
    found: str
    fix: str | None = None


@dataclass(frozen=True)
class Checkup(Printable):
    """All findings, in groups."""

    groups: dict[str, list[Check]]

    def to_json(self) -> dict[str, Any]:
        return {name: [asdict(check) for check in checks] for name, checks in self.groups.items()}

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = []
        for title, checks in self.groups.items():
            table = Table.grid(padding=(0, 2))
            table.add_column(width=1)
            table.add_column(style="dim", width=16)
            table.add_column(overflow="fold")
            for check in checks:
                found = Text(check.found)
                if check.fix:
                    found.append(f"\n→ {check.fix}", style="yellow")
                table.add_row(MARKS[check.status], check.name, found)
            parts += [Text(title, style="bold"), table, Text()]
        return Group(*parts[:-1])
