"""Result of `scalewise advise` and its table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalewise.advice.explanation import Verdict
from scalewise.advice.given_figures import calibration_json
from scalewise.advice.rows import (
    UNITS,
    OmittedStrategy,
    Row,
    dollars,
    interval_bounds,
    interval_text,
    omitted_text,
    short_seconds,
)
from scalewise.advice.tuned_device import Baseline
from scalewise.core.units import gigabytes_text, seconds_text
from scalewise.formats.profile import ProfileDocument
from scalewise.hardware.cluster import Cluster, HOST_UPDATE_GBps
from scalewise.predict.device_costs import updates_on_host
from scalewise.predict.link_factors import LinkCalibration
from scalewise.predict.predictor import Predictor
from scalewise.reporting.html_page import PagedResult

if TYPE_CHECKING:
    from scalewise.advice.comparison import Comparison
    from scalewise.reporting.page_json import Page

WIDTH = 80
"""Columns of a terminal."""
MARKS = {"measured": "", "interpolated": "~", "extrapolated": "?", "scaled": "*", "specification": "*"}
MEANINGS = {
    "interpolated": "between profiled batches",
    "extrapolated": "outside the profiled batches",
    "scaled": "scaled from another GPU",
    "specification": "from the specification of the device",
}
"""Meaning of each mark before a step time."""
STRATEGY, DEVICES, BATCH, BATCH_PER_DEVICE = "strategy", "devices", "batch", "batch/ device"
STEP, INTERVAL, EPOCH, RATE = "step time", "90% interval", "epoch time", "samples/ second"
SPEEDUP, WEAK_SCALING, BOTTLENECK = "speedup", "weak scaling", "bottleneck"
COST_PER_EPOCH, COST_PER_1000_STEPS = "cost/ epoch", "cost/1k steps"
LEFT_ALIGNED = (STRATEGY, BOTTLENECK)
KNOWN_WITHOUT_MEMORY = (DEVICES, BATCH, BATCH_PER_DEVICE)
"""Columns that a row has even if it does not fit in memory."""
HYPHENATED = {SPEEDUP: "speed- up", BOTTLENECK: "bottle- neck"}
"""Headings of a compact table."""
NOT_FITTING = "does not fit:"
NAME_WIDTH, COMPACT_NAME_WIDTH = 15, 13
"""Width of a strategy's name; longer names continue on the next line."""


def table_of(rows: Sequence[Row], best: Row, priced: bool) -> Text:
    """Lay out the rows of one global batch, or of one batch per device, in at most WIDTH columns if possible."""
    table = _table(rows, best, priced, compact=False)
    if max(map(len, table.plain.splitlines())) <= WIDTH:
        return table
    return _table(rows, best, priced, compact=True)


def _table(rows: Sequence[Row], best: Row, priced: bool, compact: bool) -> Text:
    columns = _columns(rows, priced, compact)
    titles = [STRATEGY, *columns]
    lines: list[tuple[list[str], str]] = []
    for name, same_strategy in groupby(rows, key=lambda row: row.name):
        names = folded(name, COMPACT_NAME_WIDTH if compact else NAME_WIDTH)
        for row, part in zip_longest(list(same_strategy), names):
            style = "bold" if row is best else ""
            lines.append(([part or "", *(_cells(row, columns) if row else [])], style))
    headings = [HYPHENATED.get(title, title).split(" ") if compact else _heading(title) for title in titles]
    complete = [cells for cells, _ in lines if len(cells) == len(titles)]
    widths = [max(map(len, column)) for column in zip(*(complete or [titles]), strict=True)]
    widths[0] = max([*(len(cells[0]) for cells, _ in lines), len(STRATEGY)])
    widths = [max(width, *map(len, heading)) for width, heading in zip(widths, headings, strict=True)]
    # The heading of the devices, which are few digits, reaches into the column of the strategies.
    digits = max(len(cells[1]) for cells, _ in lines if len(cells) > 1)
    widths[0] = max(widths[0], len(STRATEGY) + 1 + len(DEVICES) - 1 - digits)
    widths[1] = digits
    text = Text(no_wrap=True, overflow="ellipsis")
    for line in range(2):
        parts = [heading[line - 2] if len(heading) > 1 or line else "" for heading in headings]
        name_and_devices = f"{parts[0]}{parts[1]:>{widths[0] + 1 + widths[1] - len(parts[0])}}"
        rest = _aligned(titles[2:], widths[2:], parts[2:])
        text.append(f"{name_and_devices} {rest}".rstrip() + "\n", "dim")
    for cells, style in lines:
        text.append(_aligned(titles, widths, cells).rstrip() + "\n", style)
    text.right_crop(1)
    return text


def _heading(title: str) -> list[str]:
    """Split a heading into its one or two lines."""
    return title.split(" ", maxsplit=1)


def _aligned(titles: Sequence[str], widths: Sequence[int], cells: Sequence[str]) -> str:
    return " ".join(
        f"{cell:<{width}}" if title in LEFT_ALIGNED or _is_sentence(cell) else f"{cell:>{width}}"
        for title, width, cell in zip(titles, widths, cells, strict=False)
    )


def _cells(row: Row, columns: Mapping[str, Callable[[Row], str]]) -> list[str]:
    """Return a cell per column, or fewer: a row that does not fit has a sentence in place of its times."""
    if row.fits:
        return [column(row) for column in columns.values()]
    return [*(columns[title](row) for title in columns if title in KNOWN_WITHOUT_MEMORY), does_not_fit(row)]


def does_not_fit(row: Row) -> str:
    """Return 'does not fit: needs 13.4 GB of 11.2 GB', with enough digits to tell both apart."""
    needed, available = row.prediction.memory_bytes, row.device_memory_bytes
    digits = next((digits for digits in (3, 4, 5) if f"{needed:.{digits}g}" != f"{available:.{digits}g}"), 6)
    return f"{NOT_FITTING} needs {gigabytes_text(needed, digits)} of {gigabytes_text(available, digits)}"


def _is_sentence(cell: str) -> bool:
    return cell.startswith(NOT_FITTING)


def _columns(rows: Sequence[Row], priced: bool, compact: bool) -> dict[str, Callable[[Row], str]]:
    """Return a function per column that formats its cell of a row."""
    first, marks = rows[0], marks_of(rows)
    columns: dict[str, Callable[[Row], str]] = {DEVICES: lambda row: str(row.prediction.devices)}
    if first.weak_scaling:
        columns[BATCH] = lambda row: str(row.prediction.batch)
    else:
        columns[BATCH_PER_DEVICE] = lambda row: str(row.prediction.batch_per_device)
    columns[STEP] = lambda row: marks.get(row.prediction.known, "") + short_seconds(row.prediction.seconds)
    columns[INTERVAL] = _interval_in_unit_of_step if compact else _interval
    if first.weak_scaling:
        columns[RATE] = lambda row: _number(row.prediction.batch / row.prediction.seconds)
    else:
        if first.epoch_known:
            columns[EPOCH] = lambda row: short_seconds(row.prediction.epoch_seconds)
        columns[SPEEDUP] = lambda row: _ratio(row.speedup)
    columns[WEAK_SCALING] = lambda row: _ratio(row.speedup_per_device_batch)
    if priced and first.epoch_known:
        columns[COST_PER_EPOCH] = lambda row: dollars(row.cost_per_epoch)
    elif priced and not first.weak_scaling:
        columns[COST_PER_1000_STEPS] = lambda row: dollars(row.cost_per_1000_steps)
    columns[BOTTLENECK] = lambda row: row.prediction.bottleneck
    return columns


def marks_of(rows: Sequence[Row]) -> dict[str, str]:
    """Return the marks of step times by origin; none if all rows have the same origin, which the notes name."""
    known = {row.prediction.known for row in rows}
    return {kind: mark for kind, mark in MARKS.items() if mark and kind in known and len(known) > 1}


def folded(name: str, width: int = NAME_WIDTH) -> list[str]:
    """Break a strategy's name before or after punctuation: 'parameter-', 'server-async'."""
    lines = [""]
    for word in re.split(r"(?=[:,])|(?<=[-=])", name):
        if lines[-1] and len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += word
    return lines


def _interval(row: Row) -> str:
    return interval_text(row.prediction.low, row.prediction.high)


def _interval_in_unit_of_step(row: Row) -> str:
    """Return '10.2-14.0' beside a step of '12.1 ms'."""
    prediction = row.prediction
    unit = short_seconds(prediction.seconds).rpartition(" ")[2]
    scale = next(scale for _, scale, name in UNITS if name == unit)
    return interval_bounds(prediction.low / scale, prediction.high / scale)


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{_number(value)}x"


@dataclass(frozen=True)
class Advice(PagedResult):
    """Result of `scalewise advise`: predicted rows and a verdict."""

    profile: ProfileDocument
    source: str
    """Origin of the profile and of the links, as in 'predicted from ...'."""
    cluster: Cluster
    rows: Sequence[Row]
    verdict: Verdict
    graph_profile: ProfileDocument | None = None
    """Profile of one device whose step is a CUDA graph, if it can be one; steps on several devices cannot."""
    omitted: Sequence[OmittedStrategy] = ()
    comparison: Comparison | None = None
    """All clusters in the order of rank, if several are compared."""
    not_compared: str = ""
    """Sentence why this machine is not compared with common GPUs; empty if it is, or if clusters were given."""
    baseline: Baseline | None = None
    """What speed-ups are relative to, with the saved tune result of one device."""
    calibration: LinkCalibration | None = None
    """Factors of the links that were fitted to a file of measured steps."""

    def write_trace(self, path: Path) -> None:
        """Write the simulated step of the best row as a Chrome trace, which opens in Perfetto."""
        best = self.verdict.best.prediction
        step = Predictor(self.profile, self.cluster).simulate(best.strategy, best.devices, best.batch)
        step.timeline.write_chrome_trace(path)

    def page(self) -> Page:
        from scalewise.reporting.page_json import page_of_advice
        from scalewise.reporting.step_picture import step_pictures

        steps = [
            (row.prediction.strategy, row.prediction.devices, row.prediction.batch) if row.fits else None
            for row in self.rows
        ]
        return page_of_advice(self.to_json(), step_pictures(Predictor(self.profile, self.cluster), steps))

    def to_json(self) -> dict[str, Any]:
        graph_steps = self.graph_profile.steps if self.graph_profile else ()
        return {
            "workload": self.profile.workload,
            "cluster": self.cluster.name,
            "profile": {
                "source": self.source,
                "device": self.profile.device,
                "execution": self.profile.execution,
                "parameter_bytes": self.profile.parameter_bytes,
                "samples_per_epoch": self.profile.samples_per_epoch if self.rows[0].epoch_known else None,
                "batches": [step.batch for step in self.profile.steps],
                "graph_step_seconds": {str(step.batch): step.seconds for step in graph_steps},
            },
            "rows": [row.to_json() for row in self.rows],
            "verdict": {**self.verdict.to_json(), **self._recommendation()},
            "baseline": self.baseline.to_json() if self.baseline else None,
            **({"comparison": self.comparison.to_json()} if self.comparison else {}),
            **({"calibration": calibration_json(self.calibration)} if self.calibration else {}),
        }

    def _recommendation(self) -> dict[str, Any]:
        if self.comparison is None:
            return {}
        recommended = self.comparison.recommended
        return {"recommended": recommended.name if recommended else None, "recommendation": self.comparison.verdict()}

    def records(self) -> list[dict[str, Any]]:
        return [row.to_json() for row in self.rows]

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self.baseline and (tuned := self.baseline.first_line):
            parts += [Text(tuned, "bold"), Text()]
        if self.comparison:
            parts += [Text(self.comparison.verdict(), "bold green"), Text(), self.comparison.table(), Text()]
            parts += [Text("\n".join(self.comparison.notes()), "dim"), Text()]
        parts += [Text(self.verdict.reason, "bold green" if self.verdict.add_devices else "bold yellow"), Text()]
        for title, rows in self._tables():
            table = table_of(rows, self.verdict.best, self.cluster.price_per_hour is not None)
            parts += [Text(f"{self.profile.workload} on {self.cluster.name}, {title}", "bold"), table, Text()]
        parts.append(Text(self._legend(), "dim"))
        parts.append(Text("\n".join(self._notes()), "dim"))
        if omitted := omitted_text(self.omitted, {row.name for row in self.rows}):
            parts.append(Text(omitted, "dim"))
        if self.verdict.changes:
            figure = "speed-up over one device" if self.rows[0].fits else "seconds per step"
            parts += [Text(), Text(f"What else you could change ({figure}):")]
            changes = Table.grid(padding=(0, 0, 0, 2))
            for change in self.verdict.changes:
                speedup = seconds_text(change.seconds) if change.speedup is None else f"{change.speedup:.2f}x"
                changes.add_row(speedup, change.change)
            parts.append(changes)
        if self.calibration:
            parts += [Text(), Text("Calibration of the links:"), Text("\n".join(self.calibration.lines), "dim")]
        return Group(*parts)

    def _tables(self) -> list[tuple[str, list[Row]]]:
        """Return a title and the rows of each table: one per global batch, or one for a fixed batch per device."""
        first = self.rows[0]
        if first.weak_scaling:
            return [(f"{first.prediction.batch:,} samples on each device", list(self.rows))]
        batches = dict.fromkeys(row.prediction.batch for row in self.rows)
        return [(f"batch {batch:,}", [row for row in self.rows if row.prediction.batch == batch]) for batch in batches]

    def _legend(self) -> str:
        """Explain what the headings cannot say, in at most three lines."""
        first = self.rows[0]
        if first.weak_scaling:
            legend = (
                "weak scaling: throughput relative to one device at the same batch per device (ideal: the number of "
                "devices)."
            )
        else:
            period = "epoch" if first.epoch_known else "step"
            legend = (
                f"speedup: {period} time of one device divided by this {period} time, at the same global batch. "
                "weak scaling: throughput relative to one device at the same batch per device (ideal: the number of "
                "devices)."
            )
        marks = [f"{mark} {MEANINGS[kind]}" for kind, mark in marks_of(self.rows).items()]
        return f"{legend} {', '.join(marks)}." if marks else legend

    def _notes(self) -> list[str]:
        """Return the origin of the prediction and what it assumes."""
        first = self.rows[0]
        notes = [f"Predicted from {self.source}.", *([self.baseline.note] if self.baseline else [])]
        if "assumed:" in self.cluster.summary:
            notes.append(f"Hosts: {self.cluster.summary}.")
        if self.cluster.price_per_hour is not None and (first.epoch_known or not first.weak_scaling):
            notes.append("Costs are for whole hosts, even if some of their devices are not used.")
        if self.graph_profile:
            step = self.graph_profile.steps[-1]
            notes.append(
                f"As a CUDA graph, the step of one device takes {seconds_text(step.seconds)} at batch {step.batch}."
            )
        if self.not_compared:
            notes.append(self.not_compared)
        if utilised := self._utilised():
            notes.append(utilised)
        strategies = [row.prediction.strategy for row in self.rows]
        on_host = dict.fromkeys(strategy.name for strategy in strategies if updates_on_host(strategy, self.cluster))
        if on_host and self.cluster.devices[0].host_memory_GBps is None:
            notes.append(
                f"{', '.join(on_host)}: Adam updates in host memory are assumed to run at {HOST_UPDATE_GBps:g} GB/s "
                "(not measured)."
            )
        return notes

    def _utilised(self) -> str:
        """Memory and utilisation of the exact strategies that fit on most devices; '' without a count of the flops."""
        from scalewise.advice.comparison import utilisation

        fitting = [row for row in self.rows if row.fits and row.prediction.strategy.exact]
        most = max((row.prediction.devices for row in fitting), default=0)
        texts = []
        for row in fitting:
            share = utilisation(self.profile, self.cluster, row)
            if row.prediction.devices == most and row.prediction.batch == fitting[0].prediction.batch and share:
                texts.append(f"{row.name} {gigabytes_text(row.prediction.memory_bytes)}, {100 * share:.0f}%")
        if not texts:
            return ""
        devices = f"{most} devices" if most > 1 else "one device"
        return f"Memory per device and utilisation (MFU) on {devices}: {'; '.join(texts)}."
