"""Findings, fitted lines, texts for machines and dates; the result of an experiment."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.core.files import write_atomically
from scalewise.core.units import Printable, printable
from scalewise.formats.store import Environment


@dataclass(frozen=True)
class Finding(ABC):
    """Statement about one series; a subclass adds the numbers and the sentence."""

    series: str
    """Name of the series."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """The finding in words, without the name of the series."""

    @property
    def headline(self) -> str:
        """Short form of the sentence, used as the subtitle of a figure."""
        return self.sentence

    @property
    def notable(self) -> bool:
        """Whether the summary prints this finding; the full report contains all findings."""
        return True

    def __str__(self) -> str:
        return f"{self.series}: {self.sentence}"

    def to_json(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, **asdict(self), "sentence": self.sentence}


def write_markdown(path: Path, markdown: str) -> None:
    """Write a page of Markdown; names in it are shown as they are, never as HTML."""
    write_atomically(path, printable(markdown).replace("&", "&amp;").replace("<", "&lt;").encode())


def listed(parts: Sequence[object]) -> str:
    """Join with commas and 'and': 'a', 'a and b', 'a, b and c'."""
    texts = [str(part) for part in parts]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def devices_text(counts: Sequence[int]) -> str:
    """Format device counts: '1 device', '2 and 4 devices'."""
    return f"{listed(counts)} device{'' if list(counts) == [1] else 's'}"


@dataclass(frozen=True)
class Line:
    """Fitted line `y = intercept + slope * x`."""

    intercept: float
    slope: float
    r_squared: float
    worst_error: float
    """Largest relative error over the points."""

    def at(self, x: float) -> float:
        return self.intercept + self.slope * x


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line | None:
    """Fit a line by least squares of relative errors, because timing errors are proportional to the time.

    Return None with fewer than three different x.
    """
    import numpy as np  # slow to load, and texts of findings do not need it

    if len(x) < 3 or len(set(x)) < 3:
        return None
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    scale = xs.max() or 1.0
    [intercept, slope], *_ = np.linalg.lstsq(np.stack([1 / ys, xs / scale / ys], axis=1), np.ones_like(ys))
    errors = intercept + slope * xs / scale - ys
    spread = float(((ys - ys.mean()) ** 2).sum())
    r_squared = 1 - float((errors**2).sum()) / spread if spread else 0.0
    return Line(float(intercept), float(slope / scale), r_squared, float(np.abs(errors / ys).max()))


def r_squared_text(r_squared: float) -> str:
    """Format R² without rounding it up to 1."""
    return f"{math.floor(r_squared * 10_000) / 10_000:.4f}" if r_squared > 0.99 else f"{r_squared:.2f}"


def machine_text(environment: Environment, device_kind: str) -> str:
    """Name the devices: '2 cores of AMD EPYC', '4x GTX 1080 Ti', 'slices of NVIDIA H200'."""
    hardware = environment.hardware
    gpus = [gpu["name"] if isinstance(gpu, dict) else str(gpu) for gpu in hardware.get("gpus") or []]
    if device_kind == "cpu" or not gpus:
        return f"{hardware.get('cores', '?')} cores of {hardware.get('cpu', 'an unnamed CPU')}"
    if device_kind == "slice":
        return f"slices of {gpus[0]}"
    return f"{len(gpus)}x {gpus[0]}" if len(gpus) > 1 else gpus[0]


def place_text(environment: Environment, device_kind: str) -> str:
    """Name the devices and, if the data is synthetic, the data: '2 cores of AMD EPYC with synthetic speech'."""
    synthetic_data = f" with {environment.data}" if environment.data.startswith("synthetic") else ""
    return f"{machine_text(environment, device_kind)}{synthetic_data}"


def when_text(started: Sequence[str]) -> str:
    """Format the day of the measurements, or the first and the last day."""
    days = sorted({timestamp[:10] for timestamp in started})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


@dataclass(frozen=True)
class ExperimentResult(Printable):
    """JSON document of `scalewise reproduce`."""

    experiment: str
    findings: list[str]
    """Sentences with their numbers, the most important first."""
    columns: list[str] = field(default_factory=list)
    """Headings of the printed table."""
    rows: list[list[str]] = field(default_factory=list)
    """Rows of the printed table."""
    figures: list[Path] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    """Additional JSON entries with the numbers."""
    headline: str = ""
    """Main finding in one sentence, printed last."""
    failed: int = 0
    """Number of failed runs; the command exits with 1 if there are any."""

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

    def records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows] if self.rows else [self.to_json()]

    def to_markdown(self) -> str:
        """Return the text of `findings.md`, which is written beside the figures."""
        lines = [f"# {self.experiment}", "", *(f"- {finding}" for finding in self.findings), ""]
        if self.rows:
            lines += [f"| {' | '.join(self.columns)} |", f"|{'---|' * len(self.columns)}"]
            lines += [f"| {' | '.join(row)} |" for row in self.rows]
            lines.append("")
        lines += [f"![{path.stem}]({path.name})" for path in self.figures if path.suffix == ".png"]
        return "\n".join(lines) + "\n"

    def _output_text(self) -> str:
        """Return the path of the page that opens in a browser, and what else is in its folder."""
        html, markdown = ([path for path in self.files if path.suffix == suffix] for suffix in (".html", ".md"))
        count = len({path.with_suffix("") for path in self.figures})
        if not html and markdown and len(self.figures) > 4:
            return f"{markdown[0]} and the {count} figures in its folder (PNG and SVG)"
        if not html:
            return ", ".join(map(str, self.figures or markdown or self.files))
        figures = f"{count} figure{'s' * (count > 1)} (PNG and SVG)" if count else ""
        rest = [str(path) for path in self.files if path not in (*html, *markdown) and path.parent != html[0].parent]
        others = " and ".join(filter(None, [*(path.name for path in markdown), figures]))
        page = f"{html[0]} ({others} in the same folder)" if others else str(html[0])
        return ", ".join([page, *rest])

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
            output = f"see {self._output_text()}"
            parts += [Text(), Text(f"{self.headline}; {output}" if self.headline else output, style="bold")]
        return Group(*parts)
