"""The answer of `scalewise advise`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.advice.rows import Row
from scalewise.advice.verdict import Verdict
from scalewise.clusters.cluster import Cluster
from scalewise.prediction.predict import Predictor
from scalewise.results.printable import Printable
from scalewise.results.profile import ProfileDocument
from scalewise.results.units import seconds_text

MARKS = {"measured": "", "interpolated": "~", "extrapolated": "?"}
COLUMNS = ("strategy", "n", "each", "step", "90 %", "epoch", "faster", "grown", "limit")
LEFT = ("strategy", "limit")
NAMES = 16
"""Columns that the name of a strategy has at least."""


@dataclass(frozen=True)
class Advice(Printable):
    profile: ProfileDocument
    source: str
    """Where the profile comes from."""
    cluster: Cluster
    rows: Sequence[Row]
    verdict: Verdict
    captured: ProfileDocument | None = None
    """One device with its step as a CUDA graph, which several cannot have: the best that one can do."""

    def write_trace(self, path: Path) -> None:
        """The simulated step of the best row, for Perfetto."""
        best = self.verdict.best.prediction
        step = Predictor(self.profile, self.cluster).simulate(best.strategy, best.devices, best.batch)
        step.timeline.write_chrome_trace(path)

    def to_json(self) -> dict[str, Any]:
        captured = self.captured.steps if self.captured else ()
        return {
            "workload": self.profile.workload,
            "cluster": self.cluster.name,
            "profile": {
                "source": self.source,
                "device": self.profile.device,
                "execution": self.profile.execution,
                "parameter_bytes": self.profile.parameter_bytes,
                "samples_per_epoch": self.profile.samples_per_epoch,
                "batches": [step.batch for step in self.profile.steps],
                "graph_step_seconds": {str(step.batch): step.seconds for step in captured},
            },
            "rows": [row.to_json() for row in self.rows],
            "verdict": self.verdict.to_json(),
        }

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [
            Text(self.verdict.reason, "bold green" if self.verdict.add_devices else "bold yellow"),
            Text(),
        ]
        for batch in dict.fromkeys(row.prediction.batch for row in self.rows):
            parts += [
                Text(f"{self.profile.workload} on {self.cluster.name}, batch {batch:,}", "bold"),
                self._table([row for row in self.rows if row.prediction.batch == batch]),
                Text(),
            ]
        parts.append(Text(self._footnote(), "dim"))
        if self.verdict.changes:
            parts += [Text(), Text("What else could be done, as the speed-up over one device:")]
            changes = Table.grid(padding=(0, 0, 0, 2))
            for change in self.verdict.changes:
                changes.add_row(f"{change.speedup:.2f}", change.change)
            parts.append(changes)
        return Group(*parts)

    def _table(self, rows: Sequence[Row]) -> Table:
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
        priced = self.cluster.price_per_hour is not None
        for title in (*COLUMNS, *(("cost",) if priced else ())):
            table.add_column(
                title,
                justify="left" if title in LEFT else "right",
                no_wrap=title != "strategy",
                overflow="fold",
                min_width=NAMES if title == "strategy" else None,
            )
        before = ""
        for row in rows:
            made = row.prediction
            table.add_row(
                row.name if row.name != before else "",
                str(made.devices),
                f"{made.batch_per_device:,}{MARKS[made.known]}",
                seconds_text(made.seconds),
                f"-{100 * (1 - made.low / made.seconds):.0f}+{100 * (made.high / made.seconds - 1):.0f}",
                _short(made.epoch_seconds),
                *(("-" if value is None else f"{value:.2f}") for value in (row.speedup, row.speedup_per_device_batch)),
                made.bottleneck,
                *((_dollars(row.cost_per_epoch),) if priced else ()),
                style="bold" if row is self.verdict.best else "",
            )
            before = row.name
        return table

    def _footnote(self) -> str:
        known = {row.prediction.known for row in self.rows}
        notes = [
            f"Predicted from {self.source}. n: devices; each: samples on one; 90 %: how far the interval reaches, in "
            "percent; faster: an epoch, than on one device at the same global batch; grown: the same with as many "
            "samples on every device as the one had, so that the batch grows with the devices."
        ]
        if self.captured:
            notes += [
                f"One device whose step is a CUDA graph takes {seconds_text(step.seconds)} at batch {step.batch}."
                for step in self.captured.steps[-1:]
            ]
        notes += ["~ interpolated between profiled batches."] if "interpolated" in known else []
        notes += ["? outside of them, a guess."] if "extrapolated" in known else []
        return " ".join(notes)


def _short(seconds: float) -> str:
    """Long epochs in one unit: a table is narrow."""
    if seconds < 120:
        return seconds_text(seconds)
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:,.3g} h"


def _dollars(cost: float | None) -> str:
    if cost is None:
        return "-"
    return f"${cost:,.0f}" if cost >= 100 else f"${cost:.2f}"
