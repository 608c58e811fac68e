"""The study's experiment from cells to its page, and a small one for real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalewise.errors import RunFailed
from scalewise.experiments import stevens
from scalewise.experiments.stevens import Grid, conclude, devices_here
from scalewise.experiments.stevens_claims import headline
from scalewise.findings.series import series_of
from scalewise.measuring.measured import MeasureResult
from scalewise.published.measured import stevens_environment, stevens_measurements
from scalewise.results.experiment import ExperimentResult
from scalewise.step.settings import Execution, Settings
from scalewise.strategies.registry import strategy_of
from scalewise.verbs.measure import expected_execution
from scalewise.verbs.sweep import Progress
from tests.findings.test_series import HERE, measured
from tests.verbs.test_report import stored


def test_the_last_sentence_says_what_there_is_also_where_that_is_little_or_unlike_the_study() -> None:
    environment = stevens_environment()

    def said(*devices: int) -> str:
        cells = [each for each in stevens_measurements() if each.workload == "linear" and each.devices in devices]
        return headline({each.workload: each for each in series_of(cells, {environment.id: environment})}, [])

    assert said(2, 3) == "Found on 4x GTX 1080 Ti: no cell on several devices can be compared with one device yet"
    assert said(1, 2).startswith("Found on 4x GTX 1080 Ti: linear chokes (2 devices take ")


def test_the_page_compares_every_finding_with_the_published_figures(tmp_path: Path) -> None:
    """The study's own cells, as if `data-parallel` had been measured here."""
    cells = [
        replace(each, options={"engine": "ranks"})
        for each in stevens_measurements()
        if each.workload == "linear" and each.batch in (10, 20, 50, 100) and each.devices < 4
    ]
    result = conclude(stored(tmp_path, stevens_environment(), cells), ["a remark"])
    assert result.headline.startswith("Found on 4x GTX 1080 Ti: linear chokes (3 devices take 9.0 times as long")
    page = (tmp_path / "findings.md").read_text()
    assert page.count("**holds**") == len([claim for claim in result.data["claims"] if claim["holds"]])
    assert "| linear never gains from more devices | **holds** | never gains from more devices: all 8 cells" in page
    assert "all 36 cells take 1.9 to 9.0 times as long" in page  # the published column
    assert "- a remark" in page
    for figure in result.figures:
        assert figure.exists()
        assert (f"({figure.name})" in page) == (figure.suffix == ".png")
    assert json.loads((tmp_path / "stevens.json").read_text())["headline"] == result.headline
    ending = " ".join(str(result).rpartition("\n\n")[2].split())
    assert ending.startswith(f"{result.headline}; look at ")
    assert ending.endswith("findings.md and the 6 figures beside it (PNG and SVG)")


def test_without_a_cell_of_the_studied_strategy_there_is_nothing_to_conclude(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="no cell of data-parallel came through"):
        conclude(stored(tmp_path, HERE, [measured("mirrored", 2, 10)]))


@pytest.mark.parametrize(
    ("cores", "quick", "counts", "remark"),
    [
        (2, True, (1, 2), ""),
        (2, False, (1, 2), "devices above 2 are left out: there are 2 cores"),
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
        (2, (1, 2), "devices above 2 are left out: there are 2 GPUs"),
        (3, (1, 2, 3), "devices above 3 are left out: there are 3 GPUs"),
        (8, (1, 2, 3, 4), ""),
    ],
)
def test_all_gpus_up_to_four_are_used(
    gpus: int, counts: tuple[int, ...], remark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert devices_here(False) == ("cuda", counts, remark)


def test_one_gpu_is_cut_into_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert devices_here(False) == ("slice", (1, 2, 3, 4), "")


def test_on_a_gpu_one_device_runs_as_the_several_do_so_that_they_can_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left to itself, one device would run a CUDA graph where its clips lie in its memory."""

    def on_a_gpu(_workload: str, *, out: Path, execution: Execution = "auto", load: str, **_: Any) -> MeasureResult:
        settings = Settings(10, None, 1, execution=execution, load=load)
        cells = [
            measured(name, devices, 10, seconds, device_kind="slice")
            for name, devices, seconds in (("single", 1, 0.1), ("data-parallel", 2, 0.3))
        ]
        cells = [
            replace(each, execution=expected_execution(strategy_of(each.strategy), "slice", "adam", settings))
            for each in cells
        ]
        return MeasureResult(stored(out, HERE, cells), cells)

    monkeypatch.setattr(stevens, "devices_here", lambda _: ("slice", (1, 2), ""))
    monkeypatch.setattr(stevens, "find_speech", lambda _: None)
    monkeypatch.setattr(stevens, "QUICK", (Grid("linear", (10,)),))
    monkeypatch.setattr(stevens, "measure", on_a_gpu)
    for drawing in ("draw_comparison", "draw_all", "draw_all_phases"):
        monkeypatch.setattr(stevens, drawing, lambda *_: [])
    assert "linear chokes (2 devices take 3.0 times as long" in stevens.run(tmp_path, True, lambda _: None).headline


def test_what_one_model_leaves_over_of_the_three_minutes_is_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, given = [1000.0], []

    def quickly(_workload: str, *, out: Path, budget_total: float, **more: Any) -> MeasureResult:
        given.append(budget_total)
        assert more["on_progress"] is watch
        clock[0] += 20
        return MeasureResult(stored(out, HERE, [measured("data-parallel", 2, 10)]), [])

    monkeypatch.setattr(stevens, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(stevens, "measure", quickly)
    monkeypatch.setattr(stevens, "conclude", lambda *_: ExperimentResult("stevens", []))
    told: list[Progress] = []
    watch = told.append
    stevens.run(tmp_path, True, lambda _: None, watch)
    assert given == [75.0, 130.0]
    assert stevens.QUICK[-1].until == 150.0


def test_it_measures_draws_and_goes_on_with_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SCALEWISE_SPEECH", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(stevens, "QUICK", (Grid("linear", (100,), ("single", "data-parallel"), budget=0.2),))
    monkeypatch.setattr(stevens, "_samples", lambda: 200)
    monkeypatch.setattr(stevens, "cores_in_use", lambda: 0.0)
    told: list[str] = []
    first = stevens.run(tmp_path / "out", True, told.append)
    assert first.failed == 0
    assert told[0] == "linear: single, data-parallel on 1 to 2 cpu devices at batch 100"
    assert sorted(line.partition(":")[0].strip() for line in told[1:3]) == [
        "linear, data-parallel on 2 cpu devices, batch 100",
        "linear, single on 1 cpu device, batch 100",
    ]
    assert [row[:3] for row in first.rows] == [["linear", "single", "1"], ["linear", "data-parallel", "2"]]
    told.clear()
    monkeypatch.setattr(stevens, "conclude", lambda *_: first)
    stevens.run(tmp_path / "out", True, told.append)
    assert told[1].strip().startswith("2 cells of linear are in")
