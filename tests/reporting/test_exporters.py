"""Exports of a report: CSV, Chrome trace, TensorBoard, MLflow."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path

import pytest

from scalewise.core.errors import UserError
from scalewise.reporting.exporters import Exports, cells_of, shown_cell
from scalewise.reporting.page_json import page_of_measurements, page_of_tuning
from scalewise.reporting.report import report
from tests.reporting.example_pages import MACHINE, grid, grid_page, tune_document
from tests.reporting.test_report import stored

PAGE = grid_page()


def test_csv_has_a_line_per_cell_and_a_column_per_phase(tmp_path: Path) -> None:
    [path] = Exports(csv=tmp_path / "cells.csv").write(PAGE)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [int(row["batch"]) for row in rows] == [cell["batch"] for cell in cells_of(PAGE)]
    [row] = [row for row in rows if (row["strategy"], row["devices"], row["batch"]) == ("ring", "2", "20")]
    seconds = 1.2 * (0.025 + 0.001 * 20 / 2)
    assert float(row["step"]) == pytest.approx(seconds)
    assert float(row["reduce_seconds"]) == pytest.approx(0.2 * seconds)
    assert float(row["predicted_backward_seconds"]) > 0
    assert "detail" not in row


def test_a_trace_has_the_measured_phases_and_the_predicted_lanes_of_the_best_cell(tmp_path: Path) -> None:
    best = shown_cell(PAGE)
    assert best is not None
    assert best["speedup"] == max(cell["speedup"] or 0 for cell in cells_of(PAGE) if cell["devices"] > 1)
    [path] = Exports(trace=tmp_path / "step.json").write(PAGE)
    events = json.loads(path.read_text())["traceEvents"]
    measured = [event for event in events if event["pid"] != "predicted"]
    assert sum(event["dur"] for event in measured) == pytest.approx(1e6 * best["step"], rel=1e-4)
    predicted = [event for event in events if event["pid"] == "predicted"]
    assert max(event["ts"] + event["dur"] for event in predicted) == pytest.approx(
        1e6 * best["predicted_step"], rel=1e-3
    )
    assert {f"device {number}" for number in range(best["devices"])} <= {event["tid"] for event in predicted}


def test_a_trace_has_the_recorded_step_if_there_is_one(tmp_path: Path) -> None:
    cells = [cell for cell in grid() if cell.devices == 1 or (cell.strategy, cell.devices) == ("mirrored", 2)]
    page = page_of_measurements("Report", cells, {MACHINE.id: MACHINE})
    best = shown_cell(page)
    assert best is not None
    [path] = Exports(trace=tmp_path / "step.json").write(page)
    events = json.loads(path.read_text())["traceEvents"]
    assert {(event["pid"], event["tid"]) for event in events} == {
        ("measured", f"device {rank}{lane}") for rank in (0, 1) for lane in ("", ", transfers")
    }
    [beside] = [event for event in events if event["tid"] == "device 0, transfers"]
    assert (beside["name"], beside["ts"], beside["dur"]) == (
        "reduce",
        pytest.approx(0.5e6 * best["step"]),
        pytest.approx(0.4e6 * best["step"]),
    )


def test_a_page_without_steps_has_no_trace(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no cell has phases or a prediction"):
        Exports(trace=tmp_path / "step.json").write(page_of_tuning(tune_document()))


def test_tensorboard_has_a_run_per_strategy_and_batch_with_devices_as_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    Exports(tensorboard=tmp_path).write(PAGE)
    run = EventAccumulator(str(tmp_path / "linear mirrored batch 80"))
    run.Reload()
    cells = {cell["devices"]: cell for cell in cells_of(PAGE) if (cell["strategy"], cell["batch"]) == ("mirrored", 80)}
    points = {event.step: event.value for event in run.Scalars("speedup")}
    assert points == pytest.approx({devices: cell["speedup"] for devices, cell in cells.items()}, rel=1e-5)
    assert {"epoch", "predicted_epoch", "memory", "backward_seconds"} <= set(run.Tags()["scalars"])


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")
def test_mlflow_has_a_run_per_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")  # restored after the test, also if the export sets it
    Exports(mlflow=str(tmp_path)).write(PAGE)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=str(tmp_path))
    experiment = client.get_experiment_by_name("Report on sweep")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    assert len(runs) == len(cells_of(PAGE))
    [run] = [
        run
        for run in runs
        if [run.data.params[name] for name in ("strategy", "devices", "batch")] == ["ring", "4", "160"]
    ]
    [cell] = [c for c in cells_of(PAGE) if (c["strategy"], c["devices"], c["batch"]) == ("ring", 4, 160)]
    assert run.data.metrics["epoch"] == pytest.approx(cell["epoch"])
    assert run.info.status == "FINISHED"


@pytest.mark.parametrize(
    ("package", "exports"),
    [("tensorboard", Exports(tensorboard=Path("x"))), ("mlflow", Exports(mlflow="x"))],
    ids=["tensorboard", "mlflow"],
)
def test_a_missing_package_is_named_before_anything_is_written(
    package: str, exports: Exports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalewise.reporting.exporters.find_spec", lambda _: None)
    folder = stored(tmp_path, MACHINE, grid((20,), (2,)))
    with pytest.raises(UserError, match=rf"--{package} needs {package}, which is not installed"):
        report(folder, exports=exports)
    assert not (folder / "report.html").exists()
