"""`report` draws figures and writes findings from a folder of measurements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalewise.core.errors import UserError
from scalewise.core.statistics import Interval
from scalewise.formats.store import Environment, Measurement, Store
from scalewise.published.stevens import stevens_environment, stevens_measurements
from scalewise.reporting.report import remarks_on, report
from tests.reporting.test_series import HERE, measured


def stored(folder: Path, environment: Environment, measurements: Iterable[Measurement]) -> Path:
    with Store(folder) as store:
        store.add_environment(environment)
        for measurement in measurements:
            store.append(measurement)
    return folder


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("study"), stevens_environment(), stevens_measurements())


@pytest.mark.slow
def test_the_published_cells_give_the_studys_charts_and_findings(study: Path) -> None:
    result = report(study)
    drawn = {path.name.partition("-data-parallel")[0] for path in result.figures}
    kinds = ("epochs", "bars", "speedups", "scaling", "transfer")
    assert drawn == {f"{kind}-{workload}" for kind in kinds for workload in ("linear", "conv")}
    assert all(path.stat().st_size > 5_000 for path in result.figures)
    findings = "\n".join(result.findings)
    assert "linear, data-parallel:engine=threads: more devices are never faster: all 36 cells" in findings
    assert "epoch time = 186 ms + steps x 4.05 ms on 1 device" in findings
    assert "jumps by 28% to 41% above about 10 samples per device" in findings
    assert "13 to 18 on 4 devices; all between 13 and 15)" in findings
    assert "2.51x on 2 devices (batch 20), 3.16x on 3 (batch 30) and 3.76x on 4 (batch 50)" in findings
    assert result.rows[1] == ["linear", "data-parallel:engine=threads", "2", "378 ms", "600", "0.11x to 0.54x"]
    page = (study / "findings.md").read_text()
    for path in result.figures:
        assert (f"({path.name})" in page) == (path.suffix == ".png")
    assert "from batch 10 on 1 device (10 per device)" in page
    assert f"see {study / 'report.html'} (findings.md and 10 figures" in str(result).replace("\n", "")
    assert {finding["kind"] for finding in result.to_json()["all_findings"]} >= {"Chokes", "Bounce", "InverseBatchLaw"}


def test_unmeasured_and_flagged_cells_are_listed(tmp_path: Path) -> None:
    cells = [
        measured("single", 1, 10, flags=["drift"]),
        measured(
            "mirrored", 2, 10, options={"compress": "fp16"}, status="oom", reason="rank 1: full", step_seconds=None
        ),
    ]
    result = report(stored(tmp_path, HERE, cells))
    assert result.findings == [
        "not measured (oom): linear, mirrored:compress=fp16 on 2 devices at batch 10: rank 1: full",
        "1 of 2 cells are flagged 'drift'",
    ]
    assert result.findings[0] in (tmp_path / "findings.md").read_text()


@pytest.mark.parametrize(("high", "warned"), [(0.108, False), (0.15, True)])
def test_the_page_warns_of_uncertain_timings(tmp_path: Path, high: float, warned: bool) -> None:
    cells = [measured("single", 1, size, step_seconds=Interval(0.1, 0.095, high, 20)) for size in (10, 20, 50)]
    report(stored(tmp_path, HERE, [*cells, measured("mirrored", 2, 10, 0.3)]))
    assert ("Some timings are uncertain by ± 50%" in (tmp_path / "findings.md").read_text()) == warned


def test_cells_with_the_same_problem_share_one_line() -> None:
    def without_time(batch: int, reason: str, **more: Any) -> Measurement:
        fields = {"status": "oom", "reason": reason, "step_seconds": None, **more}
        return measured("mirrored", 2, batch, **fields)

    cells = [without_time(10, "rank 1: full"), without_time(20, "rank 0: full"), without_time(40, "rank 1: full")]
    cells.append(replace(without_time(50, "rank 1: full"), workload="conv"))
    cells.append(without_time(60, "rank 1: full", status="failed"))
    assert remarks_on(cells) == [
        "not measured (oom): 3 cells of conv and linear: rank 1: full",
        "not measured (oom): linear, mirrored on 2 devices at batch 20: rank 0: full",
        "not measured (failed): linear, mirrored on 2 devices at batch 60: rank 1: full",
    ]
    many = [replace(cells[0], workload=f"synthetic:parameters={size}") for size in (1, 2, 3, 4)]
    assert remarks_on(many) == ["not measured (oom): 4 cells of 4 workloads: rank 1: full"]


def test_phases_of_two_machines_are_drawn_apart_each_with_its_own_single_device(tmp_path: Path) -> None:
    there = Environment(hardware={"cpu": "Other CPU", "cores": 64}, samples_per_epoch=95)
    for name, place, seconds in (("here", HERE, 0.1), ("there", there, 0.4)):
        cells = [
            measured("single", 1, 10, seconds, environment=place.id, phases={"forward": seconds}),
            measured("mirrored", 2, 10, 0.3, environment=place.id, phases={"forward": 0.1, "reduce": 0.2}),
        ]
        stored(tmp_path / name, place, cells)
    result = report(tmp_path / "here", tmp_path / "there", out=tmp_path / "both")
    drawn = {path.name: path.read_text() for path in result.figures if path.suffix == ".svg" and "phases" in path.name}
    assert list(drawn) == ["phases-linear-2-cores-of-some-cpu.svg", "phases-linear-64-cores-of-other-cpu.svg"]
    assert [(">100 ms<" in text, ">400 ms<" in text) for text in drawn.values()] == [(True, False), (False, True)]
    page = (tmp_path / "both" / "findings.md").read_text()
    assert "## linear, 64 cores of Other CPU: time per step by phase" in page
    assert "![phases-linear-64-cores-of-other-cpu](phases-linear-64-cores-of-other-cpu.png)" in page


def test_an_uncertain_speedup_is_marked(tmp_path: Path) -> None:
    cells = [measured("single", 1, batch, 0.1) for batch in (10, 20)]
    cells += [measured("mirrored", 2, 10, 0.101), measured("mirrored", 2, 20, 0.4)]
    assert report(stored(tmp_path, HERE, cells)).rows[1][-1] == "0.25x to 0.99x (uncertain)"


def test_a_shared_baseline_has_one_row(tmp_path: Path) -> None:
    cells = [measured("single", 1, 10, 0.1), measured("mirrored", 2, 10, 0.2), measured("ring", 2, 10, 0.4)]
    assert [row[:4] for row in report(stored(tmp_path, HERE, cells)).rows] == [
        ["linear", "single", "1", "1 s"],
        ["linear", "mirrored", "2", "2 s"],
        ["linear", "ring", "2", "4 s"],
    ]


def test_a_strategy_that_is_its_own_baseline_at_some_batches_has_a_separate_row(tmp_path: Path) -> None:
    cells = [measured("single", 1, 20, 0.1), measured("mirrored", 1, 10, 0.2), measured("mirrored", 2, 10, 0.3)]
    assert [row[1:5] for row in report(stored(tmp_path, HERE, cells)).rows] == [
        ["mirrored", "1", "2 s", "10"],
        ["single", "1", "500 ms", "20"],
        ["mirrored", "2", "3 s", "10"],
    ]


def test_single_devices_of_two_machines_have_a_row_each(tmp_path: Path) -> None:
    there = Environment(hardware={"cpu": "Other CPU", "cores": 64}, samples_per_epoch=95)
    for name, place in (("here", HERE), ("there", there)):
        cells = [measured(*strategy, 10, environment=place.id) for strategy in (("single", 1), ("mirrored", 2))]
        stored(tmp_path / name, place, cells)
    assert [row[1:3] for row in report(tmp_path / "here", tmp_path / "there", out=tmp_path / "both").rows] == [
        ["single, 2 cores of Some CPU", "1"],
        ["mirrored, 2 cores of Some CPU", "2"],
        ["single, 64 cores of Other CPU", "1"],
        ["mirrored, 64 cores of Other CPU", "2"],
    ]


def test_a_section_without_findings_gives_the_reason(tmp_path: Path) -> None:
    result = report(stored(tmp_path, HERE, [measured("single", 1, 10)]))
    assert result.figures == []
    assert "Timed only on 1 device at batch 10: no pair" in (tmp_path / "findings.md").read_text()


def test_report_without_folders_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no measurements given; name a folder with measurements"):
        report(out=tmp_path)


def test_a_folder_without_measurements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no measurements in .*/nowhere: there is no measurements\.jsonl"):
        report(tmp_path / "nowhere")


def test_a_folder_of_failed_cells_gives_the_reasons(tmp_path: Path) -> None:
    failed = measured("single", 1, 10, status="failed", reason="it raised", step_seconds=None)
    result = report(stored(tmp_path, HERE, [failed]))
    assert result.findings == ["not measured (failed): linear, single on 1 device at batch 10: it raised"]
    assert (result.figures, result.rows) == ([], [])
    assert "No cell could be timed: 1 failed." in (tmp_path / "report.html").read_text()


def test_a_folder_without_cells_is_refused(tmp_path: Path) -> None:
    (tmp_path / "measurements.jsonl").touch()
    with pytest.raises(UserError, match=r"no cells in .*; measure with scalewise measure"):
        report(tmp_path)
