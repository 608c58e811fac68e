"""The reproduction of the study, from cells to its page, and a small real run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalewise.core.errors import RunFailed
from scalewise.core.training_options import Execution, Settings
from scalewise.published.stevens import stevens_environment, stevens_measurements
from scalewise.reporting.finding import ExperimentResult
from scalewise.reporting.series import series_of
from scalewise.strategies.registry import strategy_of
from scalewise.studies import stevens
from scalewise.studies.stevens import Grid, conclude, devices_here, headline
from scalewise.sweep.measure import expected_execution
from scalewise.sweep.result import MeasureResult
from scalewise.sweep.sweep import Progress
from tests.reporting.test_report import stored
from tests.reporting.test_series import HERE, measured


def test_the_headline_of_incomplete_measurements() -> None:
    environment = stevens_environment()

    def headline_of(*devices: int) -> str:
        cells = [cell for cell in stevens_measurements() if cell.workload == "linear" and cell.devices in devices]
        all_series = series_of(cells, {environment.id: environment})
        return headline({series.workload: series for series in all_series}, [])

    assert (
        headline_of(2, 3) == "Found on 4x GTX 1080 Ti: no cell on several devices can be compared with one device yet"
    )
    assert headline_of(1, 2).startswith("Found on 4x GTX 1080 Ti: linear chokes (2 devices take ")


def test_the_page_compares_every_finding_with_the_published_figures(tmp_path: Path) -> None:
    """The cells are the study's own, as if `data-parallel` had been measured on this machine."""
    cells = [
        replace(cell, options={"engine": "ranks"})
        for cell in stevens_measurements()
        if cell.workload == "linear" and cell.batch in (10, 20, 50, 100) and cell.devices < 4
    ]
    result = conclude(stored(tmp_path, stevens_environment(), cells), ["a remark"])
    assert result.headline.startswith("Found on 4x GTX 1080 Ti: linear chokes (3 devices take 9.0 times as long")
    page = (tmp_path / "findings.md").read_text()
    assert page.count("**holds**") == len([claim for claim in result.data["claims"] if claim["holds"]])
    assert "| linear never gains from more devices | **holds** | more devices are never faster: all 8 cells" in page
    assert "all 36 cells take 1.9 to 9.0 times as long" in page  # the published column
    assert "- a remark" in page
    for figure in result.figures:
        assert figure.exists()
        assert (f"({figure.name})" in page) == (figure.suffix == ".png")
    assert json.loads((tmp_path / "stevens.json").read_text())["headline"] == result.headline
    ending = " ".join(str(result).rpartition("\n\n")[2].split())
    assert ending.startswith(f"{result.headline}; see ")
    assert ending.endswith("findings.md and the 6 figures in its folder (PNG and SVG)")


def test_without_a_cell_of_the_studied_strategy_there_is_nothing_to_conclude(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="no cell of data-parallel was measured"):
        conclude(stored(tmp_path, HERE, [measured("mirrored", 2, 10)]))


@pytest.mark.parametrize(
    ("cores", "quick", "counts", "remark"),
    [
        (2, True, (1, 2), ""),
        (2, False, (1, 2), "measured on up to 2 devices, because this machine has 2 cores"),
        (8, False, (1, 2, 3, 4), ""),
    ],
)
def test_devices_are_as_many_as_there_are_cores(
    cores: int, quick: bool, counts: tuple[int, ...], remark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(stevens, "allowed_cores", lambda: list(range(cores)))
    assert devices_here(quick) == ("cpu", counts, remark)


@pytest.mark.parametrize(
    ("gpus", "counts", "remark"),
    [
        (2, (1, 2), "measured on up to 2 devices, because this machine has 2 GPUs"),
        (3, (1, 2, 3), "measured on up to 3 devices, because this machine has 3 GPUs"),
        (8, (1, 2, 3, 4), ""),
    ],
)
def test_all_gpus_up_to_four_are_used(
    gpus: int, counts: tuple[int, ...], remark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert devices_here(False) == ("cuda", counts, remark)


def test_a_single_gpu_is_split_into_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert devices_here(False) == ("slice", (1, 2, 3, 4), "")


def test_the_baseline_on_a_gpu_runs_eagerly_like_several_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With execution 'auto', one device would use a CUDA graph if its data is in device memory."""

    def on_a_gpu(_workload: str, *, out: Path, execution: Execution = "auto", load: str, **_: Any) -> MeasureResult:
        settings = Settings(10, None, 1, execution=execution, load=load)
        cells = [
            measured(name, devices, 10, seconds, device_kind="slice")
            for name, devices, seconds in (("single", 1, 0.1), ("data-parallel", 2, 0.3))
        ]
        cells = [
            replace(cell, execution=expected_execution(strategy_of(cell.strategy), "slice", "adam", settings))
            for cell in cells
        ]
        return MeasureResult(stored(out, HERE, cells), cells)

    monkeypatch.setattr(stevens, "devices_here", lambda _: ("slice", (1, 2), ""))
    monkeypatch.setattr(stevens, "find_speech", lambda _: None)
    monkeypatch.setattr(stevens, "QUICK", (Grid("linear", (10,)),))
    monkeypatch.setattr(stevens, "measure", on_a_gpu)
    for drawing in ("draw_comparison", "draw_all", "draw_all_phases"):
        monkeypatch.setattr(stevens, drawing, lambda *_: [])
    assert "linear chokes (2 devices take 3.0 times as long" in stevens.run(tmp_path, True, lambda _: None).headline


def test_the_second_model_gets_the_time_that_the_first_did_not_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, budgets = [1000.0], []

    def quickly(_workload: str, *, out: Path, budget_total: float, **more: Any) -> MeasureResult:
        budgets.append(budget_total)
        assert more["on_progress"] is watch
        clock[0] += 20
        return MeasureResult(stored(out, HERE, [measured("data-parallel", 2, 10)]), [])

    monkeypatch.setattr(stevens, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(stevens, "measure", quickly)
    monkeypatch.setattr(stevens, "conclude", lambda *_: ExperimentResult("stevens", []))
    reports: list[Progress] = []
    watch = reports.append
    stevens.run(tmp_path, True, lambda _: None, watch)
    assert budgets == [75.0, 130.0]
    assert stevens.QUICK[-1].until == 150.0


@pytest.mark.slow
def test_it_measures_draws_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SCALEWISE_SPEECH", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(stevens, "QUICK", (Grid("linear", (100,), ("single", "data-parallel"), budget=0.2),))
    monkeypatch.setattr(stevens, "_samples", lambda: 200)
    monkeypatch.setattr(stevens, "cores_in_use", lambda: 0.0)
    log: list[str] = []
    first = stevens.run(tmp_path / "out", True, log.append)
    assert first.failed == 0
    assert log[0] == "measuring linear: single, data-parallel on 1 to 2 cpu devices at batch 100"
    assert sorted(line.partition(":")[0].strip() for line in log[1:3]) == [
        "linear, data-parallel on 2 cpu devices, batch 100",
        "linear, single on 1 cpu device, batch 100",
    ]
    assert [row[:3] for row in first.rows] == [["linear", "single", "1"], ["linear", "data-parallel", "2"]]
    log.clear()
    monkeypatch.setattr(stevens, "conclude", lambda *_: first)
    stevens.run(tmp_path / "out", True, log.append)
    assert log[1].strip().startswith("2 cells of linear are already in")
