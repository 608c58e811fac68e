"""Result of `scalewise measure`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.core.units import seconds_text
from scalewise.formats.store import DRIFT, INTERVAL_NOT_REACHED, NO_GRAPH, OVERSUBSCRIBED, Measurement
from scalewise.reporting.html_page import PagedResult
from scalewise.reporting.series import baseline_of
from scalewise.strategies.registry import REFERENCE, is_reference, written

if TYPE_CHECKING:
    from scalewise.reporting.page_json import Page

COLUMNS = (
    "strategy",
    "devices",
    "batch",
    "batch/ device",
    "step time",
    "95% interval",
    "epoch time",
    "speedup",
    "flags",
)
LEFT = ("strategy", "flags")
WRAPPED = (*LEFT, "devices")
"""Columns that may wrap in a narrow terminal; in the others a number stays on one line with its unit."""
FLAG_TEXTS = {
    INTERVAL_NOT_REACHED: ("wide", "the interval is wider than requested because the time budget was used up"),
    DRIFT: ("drift", "timed while the machine's speed changed"),
    OVERSUBSCRIBED: ("shared", "devices share cores, so the times do not represent real devices"),
    NO_GRAPH: ("eager", "no CUDA graph was possible"),
}
"""Short name and explanation of each flag."""


@dataclass(frozen=True)
class MeasureResult(PagedResult):
    """The JSON document of `scalewise measure`."""

    folder: Path
    measurements: list[Measurement]
    """Measurements of all cells of the grid, including those of an earlier run."""
    resumed: int = 0
    """Number of cells measured in an earlier run."""
    not_begun: int = 0
    """Number of cells not started because the total budget was used up."""

    @property
    def failed(self) -> list[Measurement]:
        return [measurement for measurement in self.measurements if measurement.status == "failed"]

    def page(self) -> Page:
        from scalewise.probe.untimed_profile import outline_of
        from scalewise.reporting.report import page_of_folders

        return page_of_folders([self.folder], outline=outline_of)

    def to_json(self) -> dict[str, Any]:
        statuses = [measurement.status for measurement in self.measurements]
        return {
            "folder": str(self.folder),
            "cells": {status: statuses.count(status) for status in ("ok", "oom", "failed", "skipped")}
            | {"not_begun": self.not_begun, "resumed": self.resumed},
            "measurements": [measurement.to_json() for measurement in self.measurements],
        }

    def records(self) -> list[dict[str, Any]]:
        """Return the fields of every cell, without its recorded step, which is not a number."""
        return [replace(measurement, timeline=None).to_json() for measurement in self.measurements]

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = []
        for workload in dict.fromkeys(measurement.workload for measurement in self.measurements):
            parts += [Text(workload, style="bold"), self._table(workload), Text()]
        kinds = ", ".join(sorted({measurement.device_kind for measurement in self.measurements}))
        count = len(self.measurements)
        sentence = f"{count} cell{'' if count == 1 else 's'} on {kinds} devices, in {self.folder}"
        if self.resumed:
            sentence += f", {self.resumed} of them from an earlier run"
        if self.not_begun:
            were = "1 was" if self.not_begun == 1 else f"{self.not_begun} were"
            sentence += f"; {were} not started because the total budget was used up; continue with --resume"
        note = "speedup: epoch time of one device divided by epoch time, at the same global batch"
        parts += [Text(note, style="dim"), Text(sentence)]
        flags = {flag for measurement in self.measurements for flag in measurement.flags}
        parts += [
            Text(f"{word}: {meaning}", style="dim") for flag, (word, meaning) in FLAG_TEXTS.items() if flag in flags
        ]
        reasons = {measurement.reason: measurement for measurement in self.measurements if measurement.reason}
        parts += [Text(f"{measurement.status}: {reason}", style="yellow") for reason, measurement in reasons.items()]
        return Group(*parts)

    def _table(self, workload: str) -> Table:
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
        for title in COLUMNS:
            heading = title.replace(" ", "\n", 1) if " " in title else f"\n{title}"
            side: Literal["left", "right"] = "left" if title in LEFT else "right"
            table.add_column(heading, justify=side, no_wrap=title not in WRAPPED, overflow="fold")
        for measurement in sorted(self.measurements, key=_sort_key):
            if measurement.workload == workload:
                table.add_row(*_row(measurement, speedup_of(measurement, self.measurements)))
        return table


def cell_line(measurement: Measurement) -> str:
    """Format a measurement in one line: 'linear, mirrored on 2 cpu devices, batch 20: 4.2 ms per step, ...'."""
    place = f"{measurement.devices} {measurement.device_kind} device{'s' if measurement.devices > 1 else ''}"
    if measurement.link:
        place += f" on {measurement.hosts} host{'s' if measurement.hosts > 1 else ''} at {measurement.link}"
    strategy = written(measurement.strategy, measurement.options)
    cell = f"{measurement.workload}, {strategy} on {place}, batch {measurement.batch}"
    if measurement.status != "ok" or measurement.step_seconds is None or measurement.epoch_seconds is None:
        return f"{cell}: {measurement.status}: {measurement.reason}"
    step = f"{seconds_text(measurement.step_seconds.median)} per step ({measurement.step_seconds.width_text})"
    flags = f"  [{', '.join(measurement.flags)}]" if measurement.flags else ""
    return f"{cell}: {step}, {seconds_text(measurement.epoch_seconds)} per epoch{flags}"


def speedup_of(measurement: Measurement, others: Sequence[Measurement]) -> float | None:
    """Return the epoch time of one device divided by that of the measurement; None without a baseline."""
    if measurement.epoch_seconds is None or measurement.devices == 1:
        return None
    one = baseline_of(measurement, [other for other in others if other.epoch_seconds], REFERENCE.name)
    return one.epoch_seconds / measurement.epoch_seconds if one and one.epoch_seconds else None


def _sort_key(measurement: Measurement) -> tuple[object, ...]:
    return (
        measurement.batch,
        measurement.devices,
        not is_reference(measurement.strategy),
        measurement.strategy,
        measurement.hosts,
        measurement.link or "",
        str(measurement.options),
    )


def _row(measurement: Measurement, speedup: float | None) -> list[str]:
    step = measurement.step_seconds
    devices = str(measurement.devices) + (f" on {measurement.hosts} x {measurement.link}" if measurement.link else "")
    return [
        written(measurement.strategy, measurement.options),
        devices,
        str(measurement.batch),
        str(measurement.batch_per_device),
        seconds_text(step.median) if step else measurement.status,
        (f"± {step.width / 2:.1%}" if step.n > 1 else "once") if step else "",
        seconds_text(measurement.epoch_seconds) if measurement.epoch_seconds is not None else "",
        f"{speedup:.2f}x" if speedup else "",
        ", ".join(FLAG_TEXTS[flag][0] if flag in FLAG_TEXTS else flag for flag in measurement.flags),
    ]
