"""`scalewise validate`: compare predictions with measurements and report the errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from scalewise.advice.inputs import check_device, cluster_named
from scalewise.core.arguments import checked, one_or_more
from scalewise.core.errors import UserError
from scalewise.core.specs import unknown
from scalewise.core.units import Printable
from scalewise.hardware.cluster import Cluster
from scalewise.validation.scores import (
    Cell,
    Table,
    choices_of,
    decisions_of,
    errors_of,
    threshold_decisions,
)

if TYPE_CHECKING:
    from scalewise.validation.one_gpu_scores import OneGpuTable
from itertools import groupby

from scalewise.predict.calibration import TimedCell, fit_cells
from scalewise.predict.predictor import Predictor
from scalewise.strategies.registry import REFERENCE
from scalewise.validation.scores import InSample, by

SPECIFIED_GBps = {"cpu": 10.0, "slice": 16.0, "cuda": 16.0}
"""Bandwidth in specifications, for the naive rule: one memory channel, and PCIe 3.0."""


def given_table(name: str, cells: Sequence[TimedCell], cluster: Cluster, links: str) -> Table:
    """Predict the cells on a cluster whose links are known; nothing is fitted."""
    return _table(name, cells, lambda _: cluster, "no", f"nothing; {links}")


def fitted_table(name: str, cells: Sequence[TimedCell], cluster: Cluster) -> Table:
    """Predict each cell with links fitted to other cells: of other workloads, else of other batches, else to all."""
    splits: list[tuple[Callable[[TimedCell], str], InSample, str]] = [
        (lambda cell: cell.cell.workload, "other models", "each workload's link, on the other workloads"),
        (lambda cell: str(cell.cell.batch), "other cells", "each batch's link, on the other batches"),
    ]
    for part, in_sample, description in splits:
        parts: dict[str, Sequence[TimedCell]] = _group(cells, part)
        others = {key: [cell for cell in cells if part(cell) != key and _can_fit(cell)] for key in parts}
        if all(others.values()):
            clusters = {key: fit_cells(cluster, chosen) for key, chosen in others.items()}
            return _table(name, cells, lambda cell: clusters[part(cell)], in_sample, description)  # noqa: B023 - called at once
    chosen = [cell for cell in cells if _can_fit(cell)]
    fitted = fit_cells(cluster, chosen) if chosen else cluster
    return _table(name, cells, lambda _: fitted, "yes", "one bandwidth, on the same cells")


def _group(cells: Sequence[TimedCell], part: Callable[[TimedCell], str]) -> dict[str, Sequence[TimedCell]]:
    ordered = sorted(cells, key=part)
    return {key: list(group) for key, group in groupby(ordered, part)}


def _can_fit(cell: TimedCell) -> bool:
    return cell.cell.hosts == 1 or cell.is_across


def _table(
    name: str, cells: Sequence[TimedCell], cluster: Callable[[TimedCell], Cluster], in_sample: InSample, fitted: str
) -> Table:
    scored = [_cell(cell, cluster(cell)) for cell in cells]
    return Table(
        name,
        scored,
        in_sample,
        fitted,
        "your own measurements",
        parts=by(scored, [f"{cell.cell.workload}, {cell.cell.strategy}" for cell in cells]),
    )


def _cell(timed: TimedCell, cluster: Cluster) -> Cell:
    cell = timed.cell
    predictor = Predictor(timed.profile, timed.place_on(cluster))
    prediction = predictor.predict(timed.strategy, cell.devices, cell.batch)
    alone = predictor.simulate(REFERENCE, 1, cell.batch).step_seconds
    linear = alone / cell.devices
    specified = SPECIFIED_GBps[cell.device_kind]
    if cell.link is not None:
        specified = next(link.GBps for link in predictor.cluster.links if link.between == "hosts")
    moved = cell.bytes_per_step.busiest / 2 if cell.bytes_per_step else 0
    hosts = f" on {cell.hosts} hosts at {cell.link}" if cell.hosts > 1 else ""
    return Cell(
        label=f"{cell.workload}, {cell.strategy} on {cell.devices} devices{hosts}, batch {cell.batch}",
        measured=timed.seconds,
        predicted=prediction.seconds,
        low=prediction.low,
        high=prediction.high,
        alone=alone,
        devices=cell.devices,
        baselines={"linear scaling": linear, "bytes / specification": linear + moved / (specified * 1e9)},
        rivals=f"{cell.workload} on {cell.devices}{hosts}, batch {cell.batch}",
    )


HEADINGS = (
    "table",
    "cells",
    "median error",
    "p90 error",
    "worst error",
    "inside 90%",
    "chokes found",
    "false alarm",
    "linear rule",
    "bytes rule",
)
HONEST_INSIDE = (85, 97)
"""Percent of cells inside their 90% interval that is acceptable."""
LEGEND = (
    "inside 90%: percent of cells inside their 90% interval. choke: cell slower than one device; found of all. linear, "
    "bytes rule: median error of linear scaling, and of linear scaling plus bytes over the specified bandwidth."
)
DECISION_LEGEND = (
    "found: cells predicted beyond the threshold, of those measured beyond it. right: percent of the predicted cells "
    "that are measured beyond it. Cells measured within 5% of a threshold are counted only in the last column."
)
BASELINES = ("linear scaling", "bytes / specification")


@dataclass(frozen=True)
class Validation(Printable):
    """Result of `scalewise validate`."""

    tables: Sequence[Table]
    """Tables of steps on several devices."""
    one_device: Sequence[OneGpuTable] = ()
    """Tables of steps on one device."""

    def to_json(self) -> dict[str, Any]:
        return {
            "tables": [
                *(table.to_json() for table in self.tables),
                *(table.to_json() for table in self.one_device),
            ],
            "inside_interval_percent": {"all_cells": self.inside_percent, "mean_of_tables": self.inside_by_table},
        }

    @property
    def inside_percent(self) -> float:
        """Percent of all cells inside their 90% interval."""
        cells = [cell.inside for table in self.tables for cell in table.cells]
        cells += [prediction.inside for table in self.one_device for prediction in table.predictions]
        return 100 * sum(cells) / len(cells)

    @property
    def inside_by_table(self) -> float:
        """Percent of cells inside their 90% interval, averaged over the tables."""
        return fmean(
            [
                *(table.inside_percent for table in self.tables),
                *(table.inside_percent for table in self.one_device),
            ]
        )

    def records(self) -> list[dict[str, Any]]:
        return list(self.to_json()["tables"])

    def __rich__(self) -> RenderableType:
        several = [self._several_devices(), Text()] if self.tables else []
        one: list[RenderableType] = []
        if self.one_device:
            from scalewise.validation.one_gpu_scores import one_gpu_grid  # imports numpy

            one = [one_gpu_grid(self.one_device), Text()]
        least, most = HONEST_INSIDE
        inside = Text(
            f"{self.inside_percent:.0f}% of all cells are inside their 90% interval, {self.inside_by_table:.0f}% in "
            f"the mean of the tables (target: {least}-{most}%).",
            "green" if least <= self.inside_percent <= most else "red",
        )
        return Group(*several, *one, inside)

    def _several_devices(self) -> RenderableType:
        grid = Grid(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
        for heading in HEADINGS:
            is_name = heading == "table"
            lines = f"\n{heading}" if " " not in heading else heading.replace(" ", "\n")
            grid.add_column(lines, justify="left" if is_name else "right", no_wrap=not is_name)
        for table in self.tables:
            naive = [Text(_baseline(table, name), "dim") for name in BASELINES]
            grid.add_row(Text(table.name, "bold"), *_figures(table.cells), *_chokes(table.cells), *naive)
            for part, cells in table.parts.items():
                grid.add_row(*(Text(str(text), "dim") for text in (f" {part}", *_figures(cells))))
        notes = [Text.assemble((f"{table.name}: ", "bold"), _note(table), style="dim") for table in self.tables]
        title = Text("Errors of predicted times, in percent of the measured time", "bold")
        decisions = Text("Decisions", "bold")
        return Group(
            title, Text(), grid, Text(), Text(LEGEND, "dim"), Text(), decisions, Text(),
            _decision_grid(self.tables), Text(), Text(DECISION_LEGEND, "dim"), Text(), *notes,
        )  # fmt: skip


def _baseline(table: Table, name: str) -> str:
    return f"{table.baseline_error(name):.1f}" if name in table.baselines else "-"


def _decision_grid(tables: Sequence[Table]) -> Grid:
    """Three decisions per table."""
    grid = Grid(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("\n\ntable", no_wrap=True)
    for heading in ("slower than\none device", "below 70%\nefficiency", "below 90%\nefficiency"):
        grid.add_column(f"{heading}\nfound right", justify="right", no_wrap=True)
    grid.add_column("near a\nthreshold\nright", justify="right", no_wrap=True)
    for table in tables:
        decisions = list(threshold_decisions(table.cells).values())
        if not decisions:
            continue
        figures = [f"{one.foreseen}/{one.measured} {_percent_text(one.precision_percent):>4}" for one in decisions]
        near = f"{sum(one.near_right for one in decisions)}/{sum(one.near for one in decisions)}"
        grid.add_row(Text(table.name, "bold"), *figures, near)
    return grid


def _percent_text(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:.0f}%"


def _figures(cells: Sequence[Cell]) -> list[str]:
    errors = errors_of(cells)
    inside = 100 * sum(cell.inside for cell in cells) / len(cells)
    return [f"{len(cells):,}", f"{errors.median:.1f}", f"{errors.p90:.1f}", f"{errors.worst:.1f}", f"{inside:.0f}"]


def _chokes(cells: Sequence[Cell]) -> tuple[str, str]:
    decisions = decisions_of(cells)
    return f"{decisions.predicted_chokes}/{decisions.chokes}", str(decisions.alarms - decisions.predicted_chokes)


def _note(table: Table) -> Text:
    """Return a table's targets, whether they are met, and what was fitted."""
    errors = errors_of(table.cells)
    values = {"median": errors.median, "p90": errors.p90, "worst": errors.worst}
    note = Text()
    for name, target in table.targets.items():
        met = values[name] <= target
        note.append(f"{name} ≤ {target:g}% ({'met' if met else 'missed'}), ", "green" if met else "red")
    choices = choices_of(table.cells)
    if choices.of:
        note.append(f"best strategy predicted in {choices.right} of {choices.of} choices, ")
    if (half := table.inside_low_efficiency_percent) is not None:
        note.append(f"{half:.0f}% inside in the less efficient half, ")
    return note.append(f"fitted: {table.fitted}.")


TABLES = {
    "stevens": "scalewise.validation.small_tables:stevens_tables",
    "tensorflow": "scalewise.validation.multi_gpu:tensorflow_tables",
    "t4": "scalewise.validation.small_tables:t4_tables",
    "small": "scalewise.validation.small_tables:small_tables",
    "data-parallel": "scalewise.validation.multi_gpu:data_parallel_tables",
    "nccl": "scalewise.validation.multi_gpu:all_reduce_tables",
}
"""Names of the published tables of steps on several devices, and the functions that score them."""
ONE_GPU_TABLES = ("one_gpu_torchvision", "one_gpu_cnn", "tensorflow_2017", "one_gpu_transformers", "torchtitan")
"""Names of the published tables of steps on one device."""
PUBLISHED = (*TABLES, *ONE_GPU_TABLES)
"""Names of all published tables."""


@checked
def validate(
    tables: str | Sequence[str] = PUBLISHED,
    cluster: str | Cluster | None = None,
    on_table: Callable[[str], None] | None = None,
) -> Validation:
    """Predict measured times from their single-device rows and report the errors.

    Args:
        tables: One or several names of published tables, folders of your own measurements, or CSV files of measured
            steps; by default all published tables, which takes about ten seconds.
        cluster: Cluster on which the folders and files were measured. Without it, the bandwidth of the links is fitted
            to other cells of a folder; a CSV file needs it.
        on_table: Function that is called with the name of each table.

    Returns:
        A `Validation`, which prints as a table: errors, chokes foreseen and cells inside their 90 % interval.

    Examples:
        >>> validation = scalewise.validate("stevens")
        >>> [table.name for table in validation.tables]
        ['stevens', 'stevens, < 10 clips']
    """
    chosen = one_or_more(tables)
    if not chosen:
        raise UserError(f"no table is given; valid: {', '.join(PUBLISHED)}, or a folder of measurements")
    for name in chosen:
        if name not in PUBLISHED and not Path(name).is_dir() and not _is_csv(name):
            raise unknown("table", name, [*PUBLISHED, "a folder of measurements", "a CSV file of measured steps"])
    if cluster is not None and not any(name not in PUBLISHED for name in chosen):
        raise UserError("--cluster is only for own measurements; name the folder or CSV file, or leave --cluster out")
    results: list[Table] = []
    one_device: list[OneGpuTable] = []
    for name in chosen:
        if on_table:
            on_table(name)
        if name in ONE_GPU_TABLES:
            from scalewise.validation import one_gpu_scores  # imports numpy

            one_device.append(one_gpu_scores.TABLES[name](name))
        elif name in TABLES:
            module, _, function = TABLES[name].partition(":")
            results += getattr(import_module(module), function)()
        elif _is_csv(name):
            results += _csv_tables(Path(name), cluster)
        else:
            results.append(_own_table(Path(name), cluster))
    return Validation(results, one_device)


def _is_csv(name: str) -> bool:
    return name.lower().endswith(".csv")


def _csv_tables(path: Path, cluster: str | Cluster | None) -> list[Table]:
    if cluster is None:
        raise UserError(
            f"{path} does not say on which cluster it was measured; add --cluster, as in --cluster '4 x rtx-3090'"
        )
    from scalewise.validation.measured_file import measured_file_tables

    return measured_file_tables(path, cluster_named(cluster)[0])


def _own_table(folder: Path, cluster: str | Cluster | None) -> Table:
    from scalewise.advice.inputs import read_measured_folder

    measured = read_measured_folder(folder)
    name = folder.resolve().name
    if cluster is None:
        return fitted_table(name, measured.cells, measured.skeleton)
    given_cluster, links = cluster_named(cluster)
    remedy = "give the cluster on which it was measured, or leave --cluster out to fit the links"
    check_device(f"{folder} was measured on", measured.skeleton.devices[0].name, given_cluster, remedy)
    return given_table(name, measured.cells, given_cluster, links)
