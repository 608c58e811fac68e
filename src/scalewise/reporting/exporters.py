"""Export the cells of a page: CSV, Chrome trace, TensorBoard, MLflow."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewise.core.errors import UserError
from scalewise.core.files import check_writable, make_out_folder, write_atomically
from scalewise.core.timeline import TICKS

if TYPE_CHECKING:
    from scalewise.reporting.page_cells import Cell
    from scalewise.reporting.page_json import Page

IDENTITY = ("workload", "strategy", "device_kind", "hosts", "link", "precision", "execution", "machine", "cluster")
"""Entries that name a cell, apart from devices and batch."""
NOT_EXPORTED = ("detail", "recorded", "phases", "predicted_phases")
"""Entries that are lists or numbers of lists; phases are exported as one number each."""


@dataclass(frozen=True)
class Exports:
    """Where `scalewise report` writes its cells besides the page."""

    csv: Path | None = None
    trace: Path | None = None
    tensorboard: Path | None = None
    mlflow: str | None = None
    """Address of a tracking server, or the folder of a file store."""

    def check(self) -> None:
        """Raise UserError, before anything is measured or drawn, if something cannot be written."""
        for path in (self.csv, self.trace):
            if path:
                check_writable(path)
        for flag, package, wanted in (
            ("--tensorboard", "tensorboard", self.tensorboard),
            ("--mlflow", "mlflow", self.mlflow),
        ):
            if wanted and find_spec(package) is None:
                raise UserError(f"{flag} needs {package}, which is not installed; pip install {package}")

    def write(self, page: Page) -> list[Path]:
        """Write everything that was asked for; return the paths."""
        if self.csv:
            write_csv(page, self.csv)
        if self.trace:
            write_trace(page, self.trace)
        if self.tensorboard:
            write_tensorboard(page, self.tensorboard)
        if self.mlflow:
            log_to_mlflow(page, self.mlflow)
        return [path for path in (self.csv, self.trace, self.tensorboard) if path]


def cells_of(page: Page) -> list[Cell]:
    """Return the cells of a page as dicts."""
    table = page.get("cells", {"columns": [], "rows": []})
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def write_csv(page: Page, path: Path) -> None:
    """Write a line per cell with all its numbers; seconds of phases have a column each."""
    rows = [_flat(page, cell) for cell in cells_of(page)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def _flat(page: Page, cell: Cell) -> dict[str, Any]:
    """Return a cell without lists: phases become entries such as 'backward_seconds'."""
    flat = {name: value for name, value in cell.items() if name not in NOT_EXPORTED}
    for name, prefix in (("phases", ""), ("predicted_phases", "predicted_")):
        if name in cell:
            values = cell[name] or [None] * len(page["phases"])
            flat |= {f"{prefix}{phase}_seconds": value for phase, value in zip(page["phases"], values, strict=True)}
    return flat


def write_trace(page: Page, path: Path) -> None:
    """Write the step of the cell that the page shows first as a Chrome trace: measured phases and predicted lanes."""
    cell = shown_cell(page)
    if cell is None:
        raise UserError("no cell has phases or a prediction, so there is no step to write as a trace")
    events = [*_measured_events(page, cell), *_predicted_events(page, cell)]
    write_atomically(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())


def shown_cell(page: Page) -> Cell | None:
    """Return the cell whose step the page shows first: the one advised, or the one with the best speed-up."""
    cells = [cell for cell in cells_of(page) if cell.get("phases") or cell.get("detail") is not None]
    best = page.get("best")
    if best:
        for cell in cells:
            if all(cell[name] == value for name, value in best.items()):
                return cell
    several = [cell for cell in cells if cell["devices"] > 1] or cells
    return max(several, key=lambda cell: cell.get("speedup") or cell.get("predicted_speedup") or 0.0, default=None)


def _measured_events(page: Page, cell: Cell) -> Iterator[dict[str, Any]]:
    """Yield the recorded step, or else the measured phases of the slowest device, one after the other."""
    if cell.get("recorded") is not None:
        yield from _timeline_events(page, page["recorded"][cell["recorded"]], "measured")
        return
    start = 0.0
    for phase, seconds in zip(page["phases"], cell.get("phases") or [], strict=False):
        if seconds:
            yield _event("measured, slowest device", "phases", phase, start, seconds)
            start += seconds


def _predicted_events(page: Page, cell: Cell) -> Iterator[dict[str, Any]]:
    if cell.get("detail") is not None:
        yield from _timeline_events(page, page["details"][cell["detail"]]["timeline"], "predicted")


def _timeline_events(page: Page, timeline: Mapping[str, Any], process: str) -> Iterator[dict[str, Any]]:
    unit = timeline["seconds"] / TICKS
    for name, _, number in timeline["lanes"]:
        flat = timeline["spans"][number]
        for phase, start, length in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
            yield _event(process, name, page["phases"][phase], start * unit, length * unit)


def _event(process: str, lane: str, phase: str, start: float, seconds: float) -> dict[str, Any]:
    return {"ph": "X", "name": phase, "pid": process, "tid": lane, "ts": start * 1e6, "dur": seconds * 1e6}


def write_tensorboard(page: Page, folder: Path) -> None:
    """Write a TensorBoard run per workload, strategy and batch, whose steps are the numbers of devices."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    make_out_folder(folder)
    writers: dict[str, Any] = {}
    for cell in cells_of(page):
        name = _run_name(cell)
        if name not in writers:
            writers[name] = EventFileWriter(str(folder / name))
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in _metrics(page, cell).items()]
        writers[name].add_event(Event(step=cell["devices"], summary=Summary(value=values)))
    for writer in writers.values():
        writer.close()


def _run_name(cell: Cell) -> str:
    """Return a name for a folder, without separators of paths."""
    parts = [cell[name] for name in ("cluster", "workload", "strategy") if cell.get(name)]
    return " ".join([*map(str, parts), f"batch {cell['batch']}"]).replace("/", "_").replace("\0", "_").lstrip(".")


def _metrics(page: Page, cell: Cell) -> dict[str, float]:
    """Return the numbers of a cell, apart from devices, batch and what else names it."""
    names = {*IDENTITY, "devices", "batch", "batch_per_device", "weak_batch"}
    return {
        name: float(value)
        for name, value in _flat(page, cell).items()
        if name not in names and isinstance(value, int | float) and not isinstance(value, bool)
    }


def log_to_mlflow(page: Page, uri: str) -> None:
    """Log a run per cell to an MLflow tracking server or folder, in an experiment with the title of the page."""
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    if "://" not in uri or uri.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 refuses folders otherwise
    try:
        client = MlflowClient(tracking_uri=uri)
        existing = client.get_experiment_by_name(page["title"])
        experiment = existing.experiment_id if existing else client.create_experiment(page["title"])
        for cell in cells_of(page):
            run = client.create_run(experiment, run_name=f"{_run_name(cell)}, {cell['devices']} devices")
            metrics = [Metric(name, value, 0, 0) for name, value in _metrics(page, cell).items()]
            client.log_batch(run.info.run_id, metrics, [Param(*item) for item in _parameters(cell).items()])
            client.set_terminated(run.info.run_id)
    except (MlflowException, OSError, ValueError) as error:
        raise UserError(f"--mlflow is '{uri}': {str(error).splitlines()[0]}") from None


def _parameters(cell: Mapping[str, Any]) -> dict[str, str]:
    names = (*IDENTITY, "devices", "batch", "batch_per_device", "status")
    return {name: str(cell[name]) for name in names if cell.get(name) is not None}
