"""What an experiment found: a table, sentences, and the files that show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.results.printable import Printable


@dataclass(frozen=True)
class ExperimentResult(Printable):
    """The JSON document of `scalewise reproduce`."""

    experiment: str
    findings: list[str]
    """Plain sentences with their numbers, the most important first."""
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    """The table that people are shown."""
    figures: list[Path] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    """The numbers, for programs."""
    headline: str = ""
    """What was found, in the one sentence that comes last."""
    failed: int = 0
    """Runs that did not come through: the command then ends with 1."""

    def to_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment,
            **({"headline": self.headline} if self.headline else {}),
            "findings": self.findings,
            "figures": [str(path) for path in self.figures],
            "files": [str(path) for path in self.files],
            "failed": self.failed,
            **self.data,
        }

    def to_markdown(self) -> str:
        """For `findings.md` beside the figures."""
        lines = [f"# {self.experiment}", "", *(f"- {finding}" for finding in self.findings), ""]
        if self.rows:
            lines += [f"| {' | '.join(self.columns)} |", f"|{'---|' * len(self.columns)}"]
            lines += [f"| {' | '.join(row)} |" for row in self.rows]
            lines.append("")
        lines += [f"![{path.stem}]({path.name})" for path in self.figures if path.suffix == ".png"]
        return "\n".join(lines) + "\n"

    def _where_to_look(self) -> str:
        """The figures, or where they are described if they are many."""
        pages = [path for path in self.files if path.suffix == ".md"]
        if len(self.figures) <= 4 or not pages:
            return ", ".join(map(str, self.figures or pages))
        drawn = len({path.with_suffix("") for path in self.figures})
        return f"{pages[0]} and the {drawn} figures beside it (PNG and SVG)"

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self.rows:
            table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
            for number, column in enumerate(self.columns):
                table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
            for row in self.rows:
                table.add_row(*row)
            parts += [table, Text()]
        parts += [Text(f"- {finding}") for finding in self.findings]
        if self.figures or self.files:
            look = f"look at {self._where_to_look()}"
            parts += [Text(), Text(f"{self.headline}; {look}" if self.headline else look, style="bold")]
        return Group(*parts)
