"""`scalewise.measure` on real ranks: times, failures, resuming, and kills at any moment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import scalewise
from scalewise.formats.store import Measurement, Store
from scalewise.launch import emulated_hosts
from scalewise.sweep.result import MeasureResult
from tests import tiny_broken
from tests.command import ROOT
from tests.sweep import killed_sweep

pytestmark = pytest.mark.usefixtures("short_visits")

FAST: dict[str, Any] = {"device_kind": "cpu", "interval": 1e3, "timeout_seconds": 20.0}
"""Options that accept any interval, so that each cell is timed in as few blocks as possible."""


def measure(workloads: str | list[str], folder: Path, **more: Any) -> MeasureResult:
    return scalewise.measure(workloads, out=folder, **{**FAST, **more})


def by_cell(measurements: list[Measurement]) -> dict[tuple[str, str, int, int], Measurement]:
    return {(cell.workload.partition(":")[2], cell.strategy, cell.devices, cell.batch): cell for cell in measurements}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> MeasureResult:
    """Measure a healthy workload and three whose rank 1 fails."""
    names = ["tests.tiny:float32", *(f"tests.tiny_ranks:{name}" for name in ("out_of_memory", "killed", "raises"))]
    return measure(names, tmp_path_factory.mktemp("sweep"), batch=[8, 32], devices=[1, 2])


@pytest.mark.slow
def test_healthy_cells_have_times(swept: MeasureResult) -> None:
    cells = by_cell(swept.measurements)
    one, two = cells["float32", "single", 1, 8], cells["float32", "mirrored", 2, 8]
    for cell in (one, two):
        assert (cell.status, cell.reason, cell.protocol, cell.execution) == ("ok", None, "quick", "eager")
        assert cell.step_seconds is not None
        assert cell.step_seconds.n >= 6
        assert cell.epoch_seconds is not None
        assert cell.epoch_seconds > cell.step_seconds.median
        assert sum(cell.phases.values()) == pytest.approx(cell.step_seconds.median)
    assert (two.batch, two.batch_per_device, two.optimizer, two.options["compress"]) == (8, 4, "momentum", "none")
    assert two.bytes_per_step is not None
    assert two.bytes_per_step.traced == two.bytes_per_step.planned > 0


@pytest.mark.slow
def test_healthy_cells_have_a_recorded_step_with_the_transfers_of_every_device(swept: MeasureResult) -> None:
    cells = by_cell(swept.measurements)
    one, two = cells["float32", "single", 1, 8].timeline, cells["float32", "mirrored", 2, 8].timeline
    assert one is not None
    assert [(lane.rank, lane.lane) for lane in one.lanes] == [(0, "compute")]
    assert {phase for phase, _, _ in one.lanes[0].spans} >= {"forward", "backward"}
    assert two is not None
    assert [(lane.rank, lane.lane) for lane in two.lanes] == [
        (0, "compute"),
        (0, "network"),
        (1, "compute"),
        (1, "network"),
    ]
    for lane in two.lanes:
        assert {phase for phase, _, _ in lane.spans} >= ({"reduce"} if lane.lane == "network" else {"forward"})
    assert by_cell(Store.read(swept.folder))["float32", "mirrored", 2, 8].timeline == two


def test_failures_are_recorded_with_their_reason_and_the_sweep_continues(swept: MeasureResult) -> None:
    cells = by_cell(swept.measurements)
    failed = {name: cells[name, "mirrored", 2, 8] for name in ("out_of_memory", "killed", "raises")}
    assert {name: cell.status for name, cell in failed.items()} == {
        "out_of_memory": "oom",
        "killed": "failed",
        "raises": "failed",
    }
    reasons = {name: cell.reason or "" for name, cell in failed.items()}
    assert "rank 1 ran out of memory" in reasons["out_of_memory"]
    assert reasons["killed"] == "rank 1 was killed (signal 9)"
    assert "ValueError: a bug in the loss" in reasons["raises"]
    assert {cell.status for key, cell in cells.items() if key[2] == 1 and key[3] == 8} == {"ok"}
    assert len(swept.failed) == 2


def test_a_batch_larger_than_the_data_is_skipped(swept: MeasureResult) -> None:
    skipped = [cell for cell in swept.measurements if cell.batch == 32]
    assert {cell.status for cell in skipped} == {"skipped"}
    assert {cell.reason for cell in skipped} == {
        "--batch is 32 but there are only 16 samples (generated numbers); use at most 16"
    }


def test_the_folder_holds_the_returned_measurements_and_their_environments(swept: MeasureResult) -> None:
    assert {cell.identity: cell for cell in Store.read(swept.folder)} == {
        cell.identity: cell for cell in swept.measurements
    }
    environments = Store.environments(swept.folder)
    for cell in swept.measurements:
        environment = environments[cell.environment]
        assert (environment.data, environment.samples_per_epoch) == ("generated numbers", 16)
        assert environment.hardware["cores"] == len(os.sched_getaffinity(0))
        assert "torch" in environment.versions


def test_the_result_prints_and_is_json(swept: MeasureResult) -> None:
    text = str(swept)
    assert "speedup" in text
    assert "failed: rank 1 was killed (signal 9)" in text
    document = json.loads(json.dumps(swept.to_json()))
    assert document["cells"] == {"ok": 9, "oom": 1, "failed": 2, "skipped": 12, "not_begun": 0, "resumed": 0}
    assert len(document["measurements"]) == 24


def test_resuming_measures_only_failed_cells_again(swept: MeasureResult, tmp_path: Path) -> None:
    for name in ("measurements.jsonl", "environment.json"):
        (tmp_path / name).write_bytes((swept.folder / name).read_bytes())
    repeated: list[Measurement] = []
    result = measure(
        ["tests.tiny:float32", "tests.tiny_ranks:raises"],
        tmp_path,
        batch=[8, 32],
        devices=[1, 2],
        resume=True,
        on_cell=repeated.append,
    )
    assert [(cell.workload, cell.status) for cell in repeated] == [("tests.tiny_ranks:raises", "failed")]
    assert result.resumed == 11


def test_a_folder_with_measurements_needs_resume(swept: MeasureResult) -> None:
    with pytest.raises(scalewise.UserError, match=rf"{swept.folder} already holds 24 measurements; .* --resume"):
        measure("tests.tiny:float32", swept.folder)


@pytest.mark.parametrize(
    ("changed", "message"), [({"samples": 12}, "samples was 16 and is now 12"), ({"load": "stream"}, "load was 'auto'")]
)
def test_cells_of_one_folder_are_comparable(swept: MeasureResult, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(scalewise.UserError, match=message):
        measure("tests.tiny:float32", swept.folder, resume=True, **changed)


BROKEN: dict[str, Any] = {
    "strategy": ["single", "mirrored"],
    "batch": [4],
    "samples": 16,
    "input_shape": "6",
    "classes": 3,
}


@pytest.mark.slow
def test_a_model_that_fails_before_its_first_step_is_recorded_and_the_others_continue(tmp_path: Path) -> None:
    names = [f"tests.tiny_broken:{name}" for name in ("raises", "too_large", "healthy")]
    result = measure(names, tmp_path, **BROKEN, devices=[1])
    cells = {key[:2]: cell for key, cell in by_cell(result.measurements).items()}
    assert {key: cell.status for key, cell in cells.items()} == {
        (name, strategy): status
        for name, status in (("raises", "failed"), ("too_large", "oom"), ("healthy", "ok"))
        for strategy in ("single", "mirrored")
    }
    file = re.escape(str(Path(tiny_broken.__file__)))
    assert re.fullmatch(rf"{file}:\d+: ValueError: a bug in forward", cells["raises", "single"].reason or "")
    assert re.fullmatch(
        r"tests\.tiny_broken:too_large ran out of memory before the first step: tried to allocate .* MB more",
        cells["too_large", "mirrored"].reason or "",
    )
    assert len(Store.read(tmp_path)) == 6


@pytest.mark.slow
def test_a_repaired_model_is_measured_on_resuming(tmp_path: Path) -> None:
    file = tmp_path / "repaired.py"
    options: dict[str, Any] = {**BROKEN, "strategy": "single"}
    file.write_text("from tests.tiny_broken import raises as model\n")
    [failed] = measure(f"{file}:model", tmp_path, **options).measurements
    assert failed.status == "failed"
    file.write_text("from tests.tiny_broken import healthy as model\n")
    [repaired] = measure(f"{file}:model", tmp_path, **options, resume=True).measurements
    assert (repaired.status, repaired.identity) == ("ok", failed.identity)
    assert [cell.status for cell in Store.read(tmp_path)] == ["ok"]


def test_missing_data_fails_the_cells_of_its_workload(tmp_path: Path) -> None:
    [cell] = measure("tests.tiny_broken:without_data", tmp_path, strategy="single", batch=[4]).measurements
    assert (cell.status, cell.optimizer) == ("failed", "momentum")
    assert re.fullmatch(
        rf"{re.escape(str(Path(tiny_broken.__file__)))}:\d+: FileNotFoundError: no such file: clips\.zip",
        cell.reason or "",
    )


@pytest.mark.parametrize("name", ["tests.tiny_broken:nothing", "tests.nowhere:model", "nowhere.at.all:model"])
def test_an_unknown_workload_is_refused_before_the_sweep_starts(name: str, tmp_path: Path) -> None:
    with pytest.raises(scalewise.UserError):
        measure(["tests.tiny:float32", name], tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_both_protocols_may_share_a_folder(tmp_path: Path) -> None:
    for protocol, epochs in (("quick", None), ("paper", 4)):
        measure(
            "tests.tiny:float32", tmp_path, strategy="single", batch=[3], protocol=protocol, epochs=epochs, resume=True
        )
    quick, paper = Store.read(tmp_path)
    assert (quick.protocol, paper.protocol) == ("quick", "paper")
    assert paper.step_seconds is not None
    assert paper.step_seconds.n == 3 * 5  # the sixth of an epoch is short, and the first epoch is dropped


def test_asynchronous_cells_are_measured_by_their_updates(tmp_path: Path) -> None:
    result = measure("tests.tiny:float32", tmp_path, strategy="parameter-server-async", devices=[2], batch=[8])
    [cell] = result.measurements
    assert cell.status == "ok", cell.reason
    assert cell.step_seconds is not None
    assert cell.epoch_seconds is not None
    assert cell.step_seconds.n >= 6
    assert cell.timeline is not None
    assert {lane.rank for lane in cell.timeline.lanes} == {0, 1}
    assert {"pull", "push", "backward"} <= {phase for lane in cell.timeline.lanes for phase, _, _ in lane.spans}


@pytest.mark.skipif(emulated_hosts.obstacle() is not None, reason=emulated_hosts.obstacle() or "")
def test_a_strategy_that_cannot_use_several_hosts_is_skipped(tmp_path: Path) -> None:
    """The other strategy runs on the same ranks, which have been started already."""
    result = measure(
        "tests.tiny:float32",
        tmp_path,
        strategy=["ring", "central-storage"],
        devices=[2],
        batch=[8],
        hosts=[2],
        link=["500mbit"],
    )
    cells = {cell.strategy: cell for cell in result.measurements}
    assert (cells["ring"].status, cells["ring"].hosts, cells["ring"].link) == ("ok", 2, "500mbit")
    assert cells["central-storage"].status == "skipped"
    assert cells["central-storage"].reason


@pytest.mark.slow
def test_an_interrupted_sweep_keeps_its_cells_and_can_be_resumed(tmp_path: Path) -> None:
    grid: dict[str, Any] = {"strategy": "single", "batch": [4, 8], "devices": [1]}
    with pytest.raises(scalewise.RunFailed) as ended:
        measure("tests.tiny:float32", tmp_path, **grid, on_cell=lambda _: os.kill(os.getpid(), signal.SIGINT))
    assert str(ended.value) == (
        f"interrupted; 1 of 2 cells are in {tmp_path}; continue with the same command and --resume"
    )
    assert len(Store.read(tmp_path)) == 1
    result = measure("tests.tiny:float32", tmp_path, **grid, resume=True)
    assert (result.resumed, len(result.measurements)) == (1, 2)


@pytest.mark.slow
def test_an_interrupted_experiment_is_continued_with_the_same_command(tmp_path: Path) -> None:
    """Experiments always resume and have no --resume option."""
    with pytest.raises(scalewise.RunFailed) as ended:
        measure(
            "tests.tiny:float32",
            tmp_path,
            strategy="single",
            batch=[4, 8],
            resume=True,
            on_cell=lambda _: os.kill(os.getpid(), signal.SIGINT),
        )
    assert str(ended.value) == f"interrupted; 1 of 2 cells are in {tmp_path}; continue with the same command"


def test_an_empty_list_of_batches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(scalewise.UserError, match="--batch is ''"):
        measure("tests.tiny:float32", tmp_path, batch=[])


@pytest.mark.slow
def test_ten_kills_at_any_moment_lose_and_repeat_no_cell(tmp_path: Path) -> None:
    """Recorded cells survive every kill, and in the end every cell is recorded once."""
    script = [sys.executable, "-m", killed_sweep.__name__, str(tmp_path), str(time.time_ns())]
    process = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.stdout, process.stderr
    output = json.loads(process.stdout)
    assert output["exit"] == 0, process.stderr
    assert len(output["cells"]) == killed_sweep.KILLS
    assert output["cells"] == sorted(output["cells"])
    lines = (tmp_path / "measurements.jsonl").read_text().splitlines()
    cells = Counter((json.loads(line)["workload"], json.loads(line)["batch"]) for line in lines)
    names = ("tests.tiny:float32", "tests.tiny:float64")
    assert cells == Counter((name, batch) for name in names for batch in killed_sweep.BATCHES)
    assert {cell.environment for cell in Store.read(tmp_path)} <= set(Store.environments(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["environment.json", "measurements.jsonl"]
