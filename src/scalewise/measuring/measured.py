"""What a sweep brings back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.results.baseline import baseline_of
from scalewise.results.measurement import DRIFT, INTERVAL_NOT_REACHED, NO_GRAPH, OVERSUBSCRIBED, Measurement
from scalewise.results.printable import Printable
from scalewise.results.units import seconds_text
from scalewise.strategies.written import written

COLUMNS = ("strategy", "devices", "batch", "per device", "step", "width", "epoch", "speed-up", "flags")
LEFT = ("strategy", "flags")
WRAPPED = (*LEFT, "devices", "per device")
"""What may take two lines in a narrow terminal: no figure is cut off from its unit."""
SHORT = {
    INTERVAL_NOT_REACHED: ("wide", "the budget was spent before the interval was narrow enough"),
    DRIFT: ("drift", "timed while the machine's speed moved"),
    OVERSUBSCRIBED: ("shared", "devices share cores: their times say little about real devices"),
    NO_GRAPH: ("eager", "no CUDA graph was possible"),
}
"""Flags as a table has room for them, and what they mean."""


@dataclass(frozen=True)
class MeasureResult(Printable):
    """The JSON document of `scalewise measure`."""

    folder: Path
    measurements: list[Measurement]
    """Of every cell of the grid, those of an earlier run included."""
    resumed: int = 0
    """Cells that were there already."""
    not_begun: int = 0
    """Cells that the total budget left no time for."""

    @property
    def failed(self) -> list[Measurement]:
        return [each for each in self.measurements if each.status == "failed"]

    def to_json(self) -> dict[str, Any]:
        statuses = [each.status for each in self.measurements]
        return {
            "folder": str(self.folder),
            "cells": {status: statuses.count(status) for status in ("ok", "oom", "failed", "skipped")}
            | {"not_begun": self.not_begun, "resumed": self.resumed},
            "measurements": [each.to_json() for each in self.measurements],
        }

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = []
        for workload in dict.fromkeys(each.workload for each in self.measurements):
            parts += [Text(workload, style="bold"), self._table(workload), Text()]
        kinds = ", ".join(sorted({each.device_kind for each in self.measurements}))
        count = len(self.measurements)
        sentence = f"{count} cell{'' if count == 1 else 's'} on {kinds} devices, in {self.folder}"
        if self.resumed:
            sentence += f", {self.resumed} of them from before"
        if self.not_begun:
            sentence += f"; {self.not_begun} were not begun: the total budget was spent; go on with --resume"
        note = "width: of the 95 % interval of a step; speed-up: of an epoch, over one device"
        parts += [Text(note, style="dim"), Text(sentence)]
        raised = {flag for each in self.measurements for flag in each.flags}
        parts += [Text(f"{word}: {meaning}", style="dim") for flag, (word, meaning) in SHORT.items() if flag in raised]
        reasons = {each.reason: each for each in self.measurements if each.reason}
        parts += [Text(f"{each.status}: {reason}", style="yellow") for reason, each in reasons.items()]
        return Group(*parts)

    def _table(self, workload: str) -> Table:
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
        for title in COLUMNS:
            side: Literal["left", "right"] = "left" if title in LEFT else "right"
            table.add_column(title, justify=side, no_wrap=title not in WRAPPED, overflow="fold")
        for each in sorted(self.measurements, key=_place):
            if each.workload == workload:
                table.add_row(*_row(each, speedup_of(each, self.measurements)))
        return table


def cell_line(each: Measurement) -> str:
    """'linear, mirrored on 2 cpu devices, batch 20: 4.2 ms per step (95 % interval 1.8 % wide), 0.42 s per epoch'."""
    where = f"{each.devices} {each.device_kind} device{'s' if each.devices > 1 else ''}"
    if each.link:
        where += f" on {each.hosts} host{'s' if each.hosts > 1 else ''} at {each.link}"
    cell = f"{each.workload}, {written(each.strategy, each.options)} on {where}, batch {each.batch}"
    if each.status != "ok" or each.step_seconds is None or each.epoch_seconds is None:
        return f"{cell}: {each.status}: {each.reason}"
    step = f"{seconds_text(each.step_seconds.median)} per step ({each.step_seconds.width_text})"
    flags = f"  [{', '.join(each.flags)}]" if each.flags else ""
    return f"{cell}: {step}, {seconds_text(each.epoch_seconds)} per epoch{flags}"


def speedup_of(measurement: Measurement, others: Sequence[Measurement]) -> float | None:
    """How many times faster an epoch is than on one device."""
    if measurement.epoch_seconds is None or measurement.devices == 1:
        return None
    one = baseline_of(measurement, [other for other in others if other.epoch_seconds])
    return one.epoch_seconds / measurement.epoch_seconds if one and one.epoch_seconds else None


def _place(each: Measurement) -> tuple[object, ...]:
    return (
        each.batch,
        each.devices,
        each.strategy != "single",
        each.strategy,
        each.hosts,
        each.link or "",
        str(each.options),
    )


def _row(each: Measurement, speedup: float | None) -> list[str]:
    step = each.step_seconds
    where = str(each.devices) + (f" on {each.hosts} x {each.link}" if each.link else "")
    return [
        written(each.strategy, each.options),
        where,
        str(each.batch),
        str(each.batch_per_device),
        seconds_text(step.median) if step else each.status,
        (f"{step.width:.1%}" if step.n > 1 else "once") if step else "",
        seconds_text(each.epoch_seconds) if each.epoch_seconds is not None else "",
        f"{speedup:.2f}x" if speedup else "",
        ", ".join(SHORT[flag][0] if flag in SHORT else flag for flag in each.flags),
    ]
