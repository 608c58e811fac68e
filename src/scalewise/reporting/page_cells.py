"""Cells of the page: measured and predicted numbers of every combination of strategy, devices and batch.

A cell is a dict whose missing entries are unknown. `CELL_COLUMNS` names its entries; the page stores cells as rows of
these columns. `weak_batch` is the batch per device of the cell's weak scaling.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

from scalewise.core.errors import UserError
from scalewise.core.timeline import BETWEEN_DEVICES, PHASES, RecordedStep
from scalewise.formats.profile import ProfileDocument
from scalewise.formats.store import Environment, Measurement
from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.cluster import Cluster
from scalewise.predict.calibration import Fit, TimedCell, fit_cells, fit_link, skeleton, timed_cells
from scalewise.predict.network import packed
from scalewise.predict.predictor import Predictor
from scalewise.published.stevens import stevens_environment, stevens_profile
from scalewise.published.tables import load_stevens
from scalewise.reporting.finding import machine_text
from scalewise.reporting.series import Cell as SeriesCell
from scalewise.reporting.series import baseline_of, cell_of, place_key
from scalewise.reporting.step_picture import PICTURES, step_picture
from scalewise.strategies.base import Strategy
from scalewise.strategies.registry import REFERENCE, strategy_of, written

STUDY_STRATEGY = strategy_of("data-parallel:engine=threads")
"""Strategy of the 2020 study."""
FITTED = ("linear", 2, 100)
"""Cell of the study to which the bandwidth of its links is fitted: workload, GPUs, batch. It is in the middle of the
grid."""
FITTED_CELLS = 24
"""Largest number of cells to which links are fitted; of more, every n-th is taken."""
UNKNOWN_MEMORY_GB = 1e5
"""Memory from which the capacity of a device counts as unknown."""

WorkloadOutline: TypeAlias = "Callable[[str, str | None, int | None], ProfileDocument]"
"""Function (workload, input shape, classes) that returns the sizes of a workload, as a profile without steps."""
Predictions = dict[Hashable, dict[str, Any]]
"""Predictions by (identity of the cell, environment)."""


def key_of(measurement: Measurement) -> Hashable:
    return measurement.identity, measurement.environment


@cache
def study_fit() -> Fit:
    """Return the cluster of the 2020 study with the bandwidth of its links fitted to one cell."""
    workload, devices, batch = FITTED
    [row] = [row for row in load_stevens() if (row.workload, row.devices, row.batch) == FITTED]

    def predicted(cluster: Cluster) -> float:
        return Predictor(stevens_profile(workload), cluster).predict(STUDY_STRATEGY, devices, batch).epoch_seconds

    return fit_link(cluster_of("4x-gtx-1080-ti"), "devices", [predicted], [row.epoch_seconds])


def predict_cells(
    measurements: Sequence[Measurement], environments: Mapping[str, Environment], outline: WorkloadOutline | None
) -> tuple[Predictions, list[str]]:
    """Predict the cells of which one device was measured too; return the predictions and notes on their origin.

    Args:
        outline: function that returns the sizes of a cell's workload. Without it, only the published cells of the
            study are predicted, because the sizes of other workloads are not part of a measurement.
    """
    study = stevens_environment().id
    predictions: Predictions = {}
    notes: list[str] = []
    published = [cell for cell in measurements if cell.environment == study]
    if published:
        predictions |= _published(published)
        workload, devices, batch = FITTED
        notes.append(
            "Predictions of the study's cells: compute from its one-GPU column; one bandwidth, fitted to the cell "
            f"{workload} on {devices} GPUs at batch {batch}."
        )
    own = [cell for cell in measurements if cell.environment != study]
    for key in dict.fromkeys((cell.environment, cell.device_kind) for cell in own):
        if outline is None:
            break
        group = [cell for cell in own if (cell.environment, cell.device_kind) == key]
        try:
            more, note = _own(group, environments[key[0]], outline, PICTURES - len(predictions))
        except UserError as error:
            more, note = {}, f"No predictions beside the measured {key[1]} cells: {error}."
        predictions |= more
        notes += [note] if note else []
    return predictions, notes


def _published(cells: Iterable[Measurement]) -> Predictions:
    cluster = study_fit().cluster
    predictors = {workload: Predictor(stevens_profile(workload), cluster) for workload in {c.workload for c in cells}}
    return {
        key_of(cell): prediction_document(predictors[cell.workload], STUDY_STRATEGY, cell.devices, cell.batch)
        for cell in cells
        if cell.devices > 1
    }


def _own(
    cells: Sequence[Measurement], environment: Environment, outline: WorkloadOutline, pictures: int
) -> tuple[Predictions, str]:
    """Predict measured cells with links fitted to the other half of the batches, or workloads, or to the same cells."""
    samples = {cells[0].environment: environment.samples_per_epoch} if environment.samples_per_epoch else {}
    shape, classes = environment.conditions.get("input"), environment.conditions.get("classes")
    timed = timed_cells(cells, lambda cell: outline(cell.workload, shape, classes), samples)
    if not timed:
        return {}, ""
    devices = max(cell.cell.devices for cell in timed)
    cluster = skeleton(environment, cells[0].device_kind, devices)
    halves, description = _halves(timed)
    predictions: Predictions = {}
    for half, others in halves:
        fitted = _fitted(cluster, others)
        for one in half:
            predictor = Predictor(one.profile, one.place_on(fitted))
            with_picture = len(predictions) < pictures
            predictions[key_of(one.cell)] = prediction_document(
                predictor, one.strategy, one.cell.devices, one.cell.batch, with_picture
            )
    note = f"Predictions beside the {len(timed)} measured cells on several devices: compute from the one-device cells; "
    rest = f"; timelines of the first {pictures:,} cells only" if len(timed) > pictures else ""
    return predictions, f"{note}{description}{rest}."


def _halves(
    timed: Sequence[TimedCell],
) -> tuple[list[tuple[Sequence[TimedCell], Sequence[TimedCell]]], str]:
    """Return pairs of cells to predict and cells to fit links to, and a description."""
    splits: list[tuple[Callable[[TimedCell], object], str]] = [
        (lambda one: one.cell.batch, "batches"),
        (lambda one: one.cell.workload, "workloads"),
    ]
    for part, name in splits:
        values = list(dict.fromkeys(sorted((part(one) for one in timed), key=str)))
        first, second = ([one for one in timed if values.index(part(one)) % 2 == rest] for rest in (0, 1))
        if _can_fit(first) and _can_fit(second):
            return [(first, second), (second, first)], f"bandwidths fitted to the other half of the {name}"
    return [(timed, timed)], "bandwidths fitted to the same cells (in sample)"


def _can_fit(cells: Sequence[TimedCell]) -> bool:
    return any(_is_fittable(cell) for cell in cells)


def _is_fittable(cell: TimedCell) -> bool:
    return bool(cell.cell.hosts == 1 or cell.is_across)


def _fitted(cluster: Cluster, cells: Sequence[TimedCell]) -> Cluster:
    chosen = [cell for cell in cells if _is_fittable(cell)]
    every = -(-len(chosen) // FITTED_CELLS) or 1
    return fit_cells(cluster, chosen[::every]) if chosen else cluster


def prediction_document(
    predictor: Predictor, strategy: Strategy, devices: int, batch: int, with_picture: bool = True
) -> dict[str, Any]:
    """Return a prediction as a JSON document, with the keys of a row of `advise`."""
    prediction = predictor.predict(strategy, devices, batch)
    layout = packed(predictor.cluster, devices)
    memory_GB = min(predictor.cluster.device_at(place).memory_GB for place in range(max(layout.per_host)))
    document: dict[str, Any] = {
        "step_seconds": {"predicted": prediction.seconds, "low": prediction.low, "high": prediction.high},
        "epoch_seconds": prediction.epoch_seconds,
        "phases": prediction.phases,
        "bottleneck": prediction.bottleneck,
        "memory_bytes": prediction.memory_bytes,
        "device_memory_bytes": round(memory_GB * 1e9) if memory_GB < UNKNOWN_MEMORY_GB else None,
        "fits": prediction.fits,
    }
    if with_picture:
        document["picture"] = step_picture(predictor, strategy, devices, batch, layout)
    return document


RANGES = (
    "step",
    "epoch",
    "speedup",
    "weak",
    "predicted_step",
    "predicted_epoch",
    "predicted_speedup",
    "predicted_weak",
)
"""Entries with an interval: each has two more, with the endings '_low' and '_high'."""
CELL_COLUMNS = (
    "workload", "strategy", "devices", "hosts", "link", "batch", "batch_per_device", "device_kind", "precision",
    "execution", "machine", "cluster", "weak_batch", "status", "reason", "flags", "once",
    *(name + end for name in RANGES for end in ("", "_low", "_high")),
    "memory", "predicted_memory", "capacity", "fits", "exact", "bottleneck", "known", "cost", "bytes", "phases",
    "predicted_phases", "detail", "recorded",
)  # fmt: skip
"""Names of the entries. `detail` is the number of the cell's predicted timeline and topology, `recorded` that of its
measured timeline."""

Cell = dict[str, Any]


def measured_cells(
    measurements: Sequence[Measurement], environments: Mapping[str, Environment], predictions: Predictions
) -> list[Cell]:
    """Return a cell per measurement, with its prediction beside it if there is one."""
    place = {key: place_key(one, environments) for key, one in _first_of_each(measurements).items()}
    alone: dict[object, list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        if measurement.devices == 1:
            alone[_group(measurement, place)].append(measurement)
    machines = {
        (one.environment, one.device_kind): machine_text(environments[one.environment], one.device_kind)
        for one in measurements
    }

    def baseline(measurement: Measurement, batch: int) -> SeriesCell | None:
        at_batch = replace(measurement, batch=batch)
        candidates = alone[_group(at_batch, place)]
        if not candidates:
            return None
        one = baseline_of(at_batch, candidates, REFERENCE.name, lambda other: place[other.environment])
        return cell_of(one, environments) if one else None

    cells = []
    for measurement in measurements:
        cell = _identity(measurement) | {"machine": machines[measurement.environment, measurement.device_kind]}
        timed = cell_of(measurement, environments)
        _add_times(cell, measurement, timed)
        one = baseline(measurement, measurement.batch)
        rest = measurement.batch % measurement.devices
        small = None if rest else baseline(measurement, measurement.batch // measurement.devices)
        cell["weak_batch"] = None if rest else measurement.batch // measurement.devices
        if timed:
            _add_ratio(cell, "speedup", one, timed)
            _add_ratio(cell, "weak", small, timed)
        if prediction := predictions.get(key_of(measurement)):
            add_prediction(cell, prediction)
            _add_predicted_ratio(cell, "predicted_speedup", one)
            _add_predicted_ratio(cell, "predicted_weak", small)
        cells.append(cell)
    return cells


def _first_of_each(measurements: Sequence[Measurement]) -> dict[str, Measurement]:
    return {measurement.environment: measurement for measurement in reversed(measurements)}


def _group(measurement: Measurement, place: Mapping[str, str]) -> tuple[object, ...]:
    """Key of the cells among which a baseline is searched; the last part is the batch."""
    return measurement.workload, place[measurement.environment], measurement.precision, measurement.batch


def _identity(measurement: Measurement) -> Cell:
    return {
        "workload": measurement.workload,
        "strategy": written(measurement.strategy, measurement.options),
        "devices": measurement.devices,
        "hosts": measurement.hosts,
        "link": measurement.link,
        "batch": measurement.batch,
        "batch_per_device": measurement.batch_per_device,
        "device_kind": measurement.device_kind,
        "precision": measurement.precision,
        "execution": measurement.execution,
        "status": measurement.status,
        "reason": measurement.reason,
        "flags": ", ".join(measurement.flags) or None,
        "memory": measurement.peak_memory_bytes,
        "bytes": measurement.bytes_per_step.busiest if measurement.bytes_per_step else None,
        "phases": phase_list(measurement.phases),
        "recorded": recorded_timeline(measurement.timeline) if measurement.timeline else None,
    }


def recorded_timeline(step: RecordedStep) -> dict[str, Any]:
    """Return a recorded step in the format of `step_picture.timeline_document`, with a lane of transfers per device.

    A transfer is either recorded beside the computation or a phase in which the device waits for it.
    """
    lanes: list[list[object]] = []
    flat: list[list[int]] = []

    def add(name: str, kind: str, spans: Iterable[tuple[str, int, int]]) -> None:
        numbers = [number for phase, start, length in spans for number in (PHASES.index(phase), start, length)]
        if numbers:
            lanes.append([name, kind, len(flat)])
            flat.append(numbers)

    for rank in sorted({lane.rank for lane in step.lanes}):
        spans = {lane.lane: lane.spans for lane in step.lanes if lane.rank == rank}
        computing, beside = spans.get("compute", []), spans.get("network", [])
        recorded = {phase for phase, _, _ in beside}
        waiting = [span for span in computing if span[0] in BETWEEN_DEVICES - recorded]
        add(f"device {rank}", "device", computing)
        add(f"device {rank}, transfers", "link", sorted([*beside, *waiting], key=lambda span: span[1]))
    return {"seconds": step.seconds, "lanes": lanes, "spans": flat, "hidden_devices": 0}


def phase_list(phases: Mapping[str, float] | None) -> list[float] | None:
    """Return the seconds of every phase in the order of PHASES; None if there are none."""
    return [phases.get(phase, 0.0) for phase in PHASES] if phases else None


def _add_times(cell: Cell, measurement: Measurement, timed: SeriesCell | None) -> None:
    step = measurement.step_seconds
    if step:
        cell["step"] = step.median
        if step.n > 1:
            cell |= {"step_low": step.low, "step_high": step.high}
        else:
            cell["once"] = True
    epoch = timed.epoch_seconds if timed else measurement.epoch_seconds
    if epoch is not None:
        cell["epoch"] = epoch
        if step and step.n > 1:
            cell |= {"epoch_low": epoch * step.low / step.median, "epoch_high": epoch * step.high / step.median}


def _add_ratio(cell: Cell, name: str, one: SeriesCell | None, timed: SeriesCell) -> None:
    """Add the throughput relative to one device, with its interval if both timings have one."""
    if one is None:
        return
    ratio = timed.samples_per_second / one.samples_per_second
    uncertainty = 0.0 if timed.devices == 1 else timed.ratio_uncertainty(one)
    cell[name] = ratio
    if 0 < uncertainty < math.inf:
        cell |= {f"{name}_low": ratio / (1 + uncertainty), f"{name}_high": ratio * (1 + uncertainty)}


def add_prediction(cell: Cell, prediction: Mapping[str, Any]) -> None:
    """Add the numbers of a prediction, which has the keys of a row of `advise`."""
    step, epoch = prediction["step_seconds"], prediction["epoch_seconds"]
    if step:
        cell |= {f"predicted_step{end}": step[key] for end, key in _ENDS}
        if epoch is not None:
            cell |= {f"predicted_epoch{end}": epoch * step[key] / step["predicted"] for end, key in _ENDS}
    cell |= {
        "predicted_phases": phase_list(prediction["phases"]),
        "predicted_memory": prediction["memory_bytes"],
        "capacity": prediction.get("device_memory_bytes"),
        "fits": prediction["fits"],
        "bottleneck": prediction["bottleneck"],
        "detail": prediction.get("picture"),
    }


_ENDS = (("", "predicted"), ("_low", "low"), ("_high", "high"))


def _add_predicted_ratio(cell: Cell, name: str, one: SeriesCell | None) -> None:
    if one is None or "predicted_epoch" not in cell:
        return
    cell |= {
        name: one.epoch_seconds / cell["predicted_epoch"],
        f"{name}_low": one.epoch_seconds / cell["predicted_epoch_high"],
        f"{name}_high": one.epoch_seconds / cell["predicted_epoch_low"],
    }


def advised_cells(advice: Mapping[str, Any]) -> list[Cell]:
    """Return a cell per row of an `advise` document."""
    rows = advice["rows"]
    # With a fixed batch per device, the global batches differ. Otherwise the weak scaling of a row is about as many
    # samples per device as its global batch has.
    per_device = {row["batch_per_device"] for row in rows}
    key = "batch_per_device" if len(per_device) == 1 and len({row["batch"] for row in rows}) > 1 else "batch"
    return [
        _advised(advice["workload"], row, row.get("cluster") or advice["cluster"]) | {"weak_batch": row[key]}
        for row in rows
    ]


def _advised(workload: str, row: Mapping[str, Any], cluster: str) -> Cell:
    cell: Cell = {
        "workload": workload,
        "strategy": written(row["strategy"], row["options"]),
        "cluster": cluster,
        "status": "predicted" if row["fits"] else "does not fit",
        "reason": None if row["fits"] else "does not fit in the memory of a device",
        "exact": row.get("exact"),
        "known": row.get("known"),
        "cost": row.get("cost_per_epoch") if row.get("cost_per_epoch") is not None else row.get("cost_per_1000_steps"),
        **{name: row[name] for name in ("devices", "hosts", "batch", "batch_per_device")},
    }
    add_prediction(cell, row)
    for name, key in (("predicted_speedup", "speedup"), ("predicted_weak", "speedup_per_device_batch")):
        if row[key] is not None:
            cell[name] = row[key]
            step = row["step_seconds"]
            if step and row["devices"] > 1:
                cell[f"{name}_low"] = row[key] * step["predicted"] / step["high"]
                cell[f"{name}_high"] = row[key] * step["predicted"] / step["low"]
    return cell


def as_table(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the columns that any cell has, and the rows; numbers have six significant digits."""
    columns = [name for name in CELL_COLUMNS if any(cell.get(name) is not None for cell in cells)]
    return {"columns": columns, "rows": [[rounded(cell.get(name)) for name in columns] for cell in cells]}


def rounded(value: Any) -> Any:
    """Round floats, also those in lists and dicts, to six significant digits; NaN and infinity become None."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value
