"""`scalewise.measure` on real ranks: cells and their figures, trouble, resuming, and kills at any moment."""

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
from scalewise.measuring.measured import MeasureResult
from scalewise.results.measurement import Measurement
from scalewise.results.store import Store
from scalewise.session import hosts
from tests import tiny_broken
from tests.command import ROOT
from tests.verbs import killed_sweep

FAST: dict[str, Any] = {"device_kind": "cpu", "interval": 1e3, "timeout_seconds": 20.0}
"""Any interval is narrow enough: as few short blocks per cell as there must be."""


def measure(workloads: str | list[str], folder: Path, **more: Any) -> MeasureResult:
    return scalewise.measure(workloads, out=folder, **{**FAST, **more})


def by_cell(measurements: list[Measurement]) -> dict[tuple[str, str, int, int], Measurement]:
    return {(each.workload.partition(":")[2], each.strategy, each.devices, each.batch): each for each in measurements}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> MeasureResult:
    """A healthy workload beside three whose rank 1 comes to harm."""
    names = ["tests.tiny:float32", *(f"tests.tiny_ranks:{each}" for each in ("out_of_memory", "killed", "raises"))]
    return measure(names, tmp_path_factory.mktemp("sweep"), batch=[8, 32], devices=[1, 2])


def test_healthy_cells_have_figures(swept: MeasureResult) -> None:
    cells = by_cell(swept.measurements)
    alone, two = cells["float32", "single", 1, 8], cells["float32", "mirrored", 2, 8]
    for cell in (alone, two):
        assert (cell.status, cell.reason, cell.protocol, cell.execution) == ("ok", None, "quick", "eager")
        assert cell.step_seconds is not None
        assert cell.step_seconds.n >= 6
        assert cell.epoch_seconds is not None
        assert cell.epoch_seconds > cell.step_seconds.median
        assert sum(cell.phases.values()) == pytest.approx(cell.step_seconds.median)
    assert (two.batch, two.batch_per_device, two.optimizer, two.options["compress"]) == (8, 4, "momentum", "none")
    assert two.bytes_per_step is not None
    assert two.bytes_per_step.traced == two.bytes_per_step.planned > 0


def test_trouble_is_recorded_with_its_reason_and_the_sweep_goes_on(swept: MeasureResult) -> None:
    cells = by_cell(swept.measurements)
    found = {name: cells[name, "mirrored", 2, 8] for name in ("out_of_memory", "killed", "raises")}
    assert {name: cell.status for name, cell in found.items()} == {
        "out_of_memory": "oom",
        "killed": "failed",
        "raises": "failed",
    }
    reasons = {name: cell.reason or "" for name, cell in found.items()}
    assert "rank 1 ran out of memory" in reasons["out_of_memory"]
    assert reasons["killed"] == "rank 1 was killed (signal 9)"
    assert "ValueError: a bug in the loss" in reasons["raises"]
    assert {cell.status for key, cell in cells.items() if key[2] == 1 and key[3] == 8} == {"ok"}
    assert len(swept.failed) == 2


def test_a_batch_beyond_the_data_is_skipped(swept: MeasureResult) -> None:
    skipped = [each for each in swept.measurements if each.batch == 32]
    assert {each.status for each in skipped} == {"skipped"}
    assert {each.reason for each in skipped} == {
        "--batch is 32 but there are only 16 samples (generated numbers); use at most that"
    }


def test_the_folder_holds_what_was_returned_and_where_it_was_measured(swept: MeasureResult) -> None:
    assert {each.identity: each for each in Store.read(swept.folder)} == {
        each.identity: each for each in swept.measurements
    }
    environments = Store.environments(swept.folder)
    for each in swept.measurements:
        here = environments[each.environment]
        assert (here.data, here.samples_per_epoch) == ("generated numbers", 16)
        assert here.hardware["cores"] == len(os.sched_getaffinity(0))
        assert "torch" in here.versions


def test_the_result_prints_and_is_json(swept: MeasureResult) -> None:
    text = str(swept)
    assert "speed-up" in text
    assert "failed: rank 1 was killed (signal 9)" in text
    document = json.loads(json.dumps(swept.to_json()))
    assert document["cells"] == {"ok": 9, "oom": 1, "failed": 2, "skipped": 12, "not_begun": 0, "resumed": 0}
    assert len(document["measurements"]) == 24


def test_resuming_tries_what_failed_and_nothing_else(swept: MeasureResult, tmp_path: Path) -> None:
    for name in ("measurements.jsonl", "environment.json"):
        (tmp_path / name).write_bytes((swept.folder / name).read_bytes())
    again: list[Measurement] = []
    result = measure(
        ["tests.tiny:float32", "tests.tiny_ranks:raises"],
        tmp_path,
        batch=[8, 32],
        devices=[1, 2],
        resume=True,
        on_cell=again.append,
    )
    assert [(each.workload, each.status) for each in again] == [("tests.tiny_ranks:raises", "failed")]
    assert result.resumed == 11


def test_a_folder_in_use_is_not_gone_on_with_unasked(swept: MeasureResult) -> None:
    with pytest.raises(scalewise.UserError, match=rf"{swept.folder} already holds 24 measurements; .* --resume"):
        measure("tests.tiny:float32", swept.folder)


@pytest.mark.parametrize(
    ("changed", "said"), [({"samples": 12}, "samples was 16 and is now 12"), ({"load": "stream"}, "load was 'auto'")]
)
def test_cells_of_one_folder_are_comparable(swept: MeasureResult, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(scalewise.UserError, match=said):
        measure("tests.tiny:float32", swept.folder, resume=True, **changed)


BROKEN: dict[str, Any] = {
    "strategy": ["single", "mirrored"],
    "batch": [4],
    "samples": 16,
    "input_shape": "6",
    "classes": 3,
}


def test_a_model_that_comes_to_harm_before_its_first_step_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    names = [f"tests.tiny_broken:{each}" for each in ("raises", "too_large", "healthy")]
    result = measure(names, tmp_path, **BROKEN, devices=[1])
    found = {key[:2]: each for key, each in by_cell(result.measurements).items()}
    assert {key: each.status for key, each in found.items()} == {
        (name, strategy): status
        for name, status in (("raises", "failed"), ("too_large", "oom"), ("healthy", "ok"))
        for strategy in ("single", "mirrored")
    }
    where = re.escape(str(Path(tiny_broken.__file__)))
    assert re.fullmatch(rf"{where}:\d+: ValueError: a bug in forward", found["raises", "single"].reason or "")
    assert re.fullmatch(
        r"tests\.tiny_broken:too_large ran out of memory: tried to allocate .* MB more; even before its first step",
        found["too_large", "mirrored"].reason or "",
    )
    assert len(Store.read(tmp_path)) == 6


def test_a_model_that_was_mended_is_measured_on_resuming(tmp_path: Path) -> None:
    file = tmp_path / "mended.py"
    asked: dict[str, Any] = {**BROKEN, "strategy": "single"}
    file.write_text("from tests.tiny_broken import raises as model\n")
    [failed] = measure(f"{file}:model", tmp_path, **asked).measurements
    assert failed.status == "failed"
    file.write_text("from tests.tiny_broken import healthy as model\n")
    [mended] = measure(f"{file}:model", tmp_path, **asked, resume=True).measurements
    assert (mended.status, mended.identity) == ("ok", failed.identity)
    assert [each.status for each in Store.read(tmp_path)] == ["ok"]


def test_data_that_cannot_be_had_fails_its_cells(tmp_path: Path) -> None:
    [cell] = measure("tests.tiny_broken:without_data", tmp_path, strategy="single", batch=[4]).measurements
    assert (cell.status, cell.optimizer) == ("failed", "momentum")
    assert re.fullmatch(
        r"tests\.tiny_broken:without_data failed at .*, line \d+: FileNotFoundError: no such file: clips\.zip",
        cell.reason or "",
    )


@pytest.mark.parametrize("name", ["tests.tiny_broken:nothing", "tests.nowhere:model", "nowhere.at.all:model"])
def test_a_name_that_there_is_not_ends_the_sweep_before_it_begins(name: str, tmp_path: Path) -> None:
    with pytest.raises(scalewise.UserError):
        measure(["tests.tiny:float32", name], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_paper_and_quick_lie_in_one_folder(tmp_path: Path) -> None:
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


@pytest.mark.skipif(hosts.obstacle() is not None, reason=hosts.obstacle() or "")
def test_what_a_strategy_cannot_do_is_skipped_also_where_another_can(tmp_path: Path) -> None:
    """Both would run on the same ranks, which are open already."""
    result = measure(
        "tests.tiny:float32",
        tmp_path,
        strategy=["ring", "central-storage"],
        devices=[2],
        batch=[8],
        hosts=[2],
        link=["500mbit"],
    )
    found = {each.strategy: each for each in result.measurements}
    assert (found["ring"].status, found["ring"].hosts, found["ring"].link) == ("ok", 2, "500mbit")
    assert found["central-storage"].status == "skipped"
    assert "the memory of one machine" in (found["central-storage"].reason or "")


def test_an_interrupt_keeps_what_is_done_and_says_how_to_go_on(tmp_path: Path) -> None:
    grid: dict[str, Any] = {"strategy": "single", "batch": [4, 8], "devices": [1]}
    with pytest.raises(scalewise.RunFailed) as ended:
        measure("tests.tiny:float32", tmp_path, **grid, on_cell=lambda _: os.kill(os.getpid(), signal.SIGINT))
    assert str(ended.value) == (
        f"interrupted; 1 of 2 cells are in {tmp_path}; go on with the same command and --resume"
    )
    assert len(Store.read(tmp_path)) == 1
    result = measure("tests.tiny:float32", tmp_path, **grid, resume=True)
    assert (result.resumed, len(result.measurements)) == (1, 2)


def test_an_experiment_is_gone_on_with_by_the_same_command(tmp_path: Path) -> None:
    """It goes on in any folder, and knows no --resume."""
    with pytest.raises(scalewise.RunFailed) as ended:
        measure(
            "tests.tiny:float32",
            tmp_path,
            strategy="single",
            batch=[4, 8],
            resume=True,
            on_cell=lambda _: os.kill(os.getpid(), signal.SIGINT),
        )
    assert str(ended.value) == f"interrupted; 1 of 2 cells are in {tmp_path}; go on with the same command"


def test_no_batches_are_not_the_usual_ones(tmp_path: Path) -> None:
    with pytest.raises(scalewise.UserError, match="--batch is ''"):
        measure("tests.tiny:float32", tmp_path, batch=[])


def test_ten_kills_at_any_moment_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """What was there after a kill is there after the next, and in the end every cell is there once."""
    script = [sys.executable, "-m", killed_sweep.__name__, str(tmp_path), str(time.time_ns())]
    said = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.stdout, said.stderr
    told = json.loads(said.stdout)
    assert told["exit"] == 0, said.stderr
    assert len(told["cells"]) == killed_sweep.KILLS
    assert told["cells"] == sorted(told["cells"])
    lines = (tmp_path / "measurements.jsonl").read_text().splitlines()
    cells = Counter((json.loads(line)["workload"], json.loads(line)["batch"]) for line in lines)
    names = ("tests.tiny:float32", "tests.tiny:float64")
    assert cells == Counter((name, batch) for name in names for batch in killed_sweep.BATCHES)
    assert {each.environment for each in Store.read(tmp_path)} <= set(Store.environments(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["environment.json", "measurements.jsonl"]
