"""`scalewise measure` from the command line: lines, documents, exit codes, refusals, progress."""

from __future__ import annotations

import json
import re
import sys
from io import StringIO
from pathlib import Path

import pytest

from scalewise.cli.measure import sweep_bar
from scalewise.cli.shared import progress_lines
from scalewise.core.statistics import Interval
from scalewise.formats.store import Store
from scalewise.strategies.single import Single
from scalewise.sweep.grid import Cell
from scalewise.sweep.sweep import Progress
from tests.command import Run

pytestmark = pytest.mark.usefixtures("short_visits")

FAST = ("--device-kind", "cpu", "--interval", "1000")


@pytest.mark.slow
def test_a_failed_cell_ends_the_command_with_1_and_leaves_the_document_whole(scalewise: Run, tmp_path: Path) -> None:
    line = ("measure", "tests.tiny_ranks:raises", "--strategy", "mirrored", "--batch", "8", "--out", tmp_path, *FAST)
    output = scalewise(*line, "--json")
    assert output.code == 1
    document = json.loads(output.stdout)
    assert document["cells"] == {"ok": 1, "oom": 0, "failed": 1, "skipped": 0, "not_begun": 0, "resumed": 0}
    first, second, last = output.stderr.splitlines()
    assert "tests.tiny_ranks:raises, mirrored on 2 cpu devices, batch 8: failed: rank 1 failed" in first + second
    width = r"\((95% interval ± .*%|all \d within .*|timed once)\)"
    assert re.search(rf"mirrored on 1 cpu device, batch 8: .* per step {width}, .* per epoch", output.stderr)
    assert re.match(r"scalewise: 1 of 2 cells failed; the first: .*a bug in the loss; repeat .* with --resume", last)
    again = scalewise(*line, "--resume")
    assert again.code == 1
    assert len(Store.read(tmp_path)) == 2
    assert "2 cells on cpu devices" in again.stdout
    assert "1 of them from an earlier run" in " ".join(again.stdout.split())


def test_out_of_memory_and_skipped_are_results(scalewise: Run, tmp_path: Path) -> None:
    line = ("measure", "tests.tiny_ranks:out_of_memory", "--strategy", "mirrored", "--devices", 2, "--batch", "8,99")
    output = scalewise(*line, "--out", tmp_path, *FAST, "--json")
    assert output.code == 0, output
    reasons = {cell["batch"]: (cell["status"], cell["reason"]) for cell in json.loads(output.stdout)["measurements"]}
    assert reasons[8][0] == "oom"
    assert "rank 1 ran out of memory: OutOfMemoryError" in reasons[8][1]
    assert reasons[99][0] == "skipped"
    assert "there are only 16 samples" in reasons[99][1]


@pytest.mark.slow
def test_the_batch_may_be_meant_per_device(scalewise: Run, tmp_path: Path) -> None:
    line = ("measure", "tests.tiny:float32", "--strategy", "mirrored", "--batch-per-device", 3, "--devices", "1,2")
    output = scalewise(*line, "--out", tmp_path, *FAST, "--json")
    assert output.code == 0, output
    cells = json.loads(output.stdout)["measurements"]
    assert [(cell["devices"], cell["batch"], cell["batch_per_device"]) for cell in cells] == [(1, 3, 3), (2, 6, 3)]


REFUSED: dict[str, list[str]] = {
    "measure lineer": ["unknown workload 'lineer' (did you mean 'linear'?)"],
    "measure linear --strategy singel": ["unknown strategy 'singel' (did you mean 'single'?)"],
    "measure linear --devices 1,two": ["--devices is '1,two'", "whole numbers from 1, as in --devices 1,2,4"],
    "measure linear --epochs few": ["'--epochs': it must be a whole number, not 'few'"],
    "measure linear --batch 0": ["--batch is '0'"],
    "measure linear --batch=": ["--batch is ''; it must be whole numbers from 1, as in --batch 10,20,50"],
    "measure linear --batch-per-device=": ["--batch-per-device is ''"],
    "measure linear --link=": ["cannot read link ''"],
    "measure linear --link 1gbit": ["--link 1gbit connects emulated hosts; add --hosts 2"],
    "measure linear --batch 8 --batch-per-device 4": ["--batch and --batch-per-device exclude each other"],
    "measure linear --hosts 2": ["--hosts 2 emulates hosts, which need a link speed", "--link 1gbit"],
    "measure linear --hosts 2 --link fast": ["cannot read link 'fast'", "1gbit"],
    "measure linear --interval 0": ["--interval is 0; it must be a finite number above 0"],
    "measure linear --budget -1": ["--budget is -1; it must be a finite number above 0"],
    "measure linear --epochs 3": ["--epochs 3 needs --protocol paper"],
    "measure linear --protocol paper --epochs 1": ["--epochs is 1; use at least 2"],
    "measure linear --protocol slow": ["'slow'", "'quick', 'paper'"],
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_one_sentence_and_no_measurement(line: str, scalewise: Run, tmp_path: Path) -> None:
    scalewise(*line.split(), "--out", tmp_path / "new").refused(2, *REFUSED[line])
    assert not list(tmp_path.glob("new/measurements.jsonl")) or not (tmp_path / "new/measurements.jsonl").read_bytes()


@pytest.mark.slow
def test_a_folder_with_measurements_needs_resume(scalewise: Run, tmp_path: Path) -> None:
    line = ("measure", "tests.tiny:float32", "--strategy", "single", "--batch", "8", "--out", tmp_path, *FAST)
    first = scalewise(*line, "--resume")
    assert first.code == 0
    assert first.stderr.startswith(f"scalewise: --resume: {tmp_path} has no measurements; starting a new sweep\n")
    assert f"1 cell on cpu devices, in {tmp_path}" in " ".join(first.stdout.split())
    before = (tmp_path / "measurements.jsonl").read_bytes()
    scalewise(*line).refused(2, f"{tmp_path} already holds 1 measurements", "--resume", "--out")
    again = scalewise(*line, "--resume")
    assert (again.code, again.stderr) == (0, "")
    assert (tmp_path / "measurements.jsonl").read_bytes() == before


def test_an_out_that_is_a_file_is_refused(scalewise: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    scalewise("measure", "linear", "--out", tmp_path / "file").refused(
        2, f"cannot create the folder {tmp_path / 'file'}"
    )


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_the_spinner_shows_the_progress_of_an_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    for stderr, visible in ((Terminal(), True), (StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stderr)
        with progress_lines("stevens") as (tell, now):
            now("3/12 cells, [linear]")
            tell("a cell is through")
        assert ("stevens: 3/12 cells, [linear]" in stderr.getvalue()) == visible
        assert "a cell is through" in stderr.getvalue()


def test_a_terminal_shows_a_bar_and_a_line_per_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    cell = Cell("linear", Single(), 1, "cpu", 1, None, 20, "fp32", "adam", "quick", "eager")
    interval = Interval(0.02, 0.019, 0.022, 30)
    with sweep_bar() as (on_progress, on_cell):
        on_progress(Progress(3, 12, 0.25, cell, interval, 2))
        on_cell(cell.measured(step_seconds=interval, epoch_seconds=2.0, environment="x", started="", flags=["drift"]))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "3/12 cells" in text
    assert "linear, single on 1 cpu device, batch 20: 20 ms, 95% interval ± 7.5%" in text
    assert (
        "linear, single on 1 cpu device, batch 20: 20 ms per step (95% interval ± 7.5%), 2 s per epoch  [drift]\n"
        in text.replace("\r", "")
    )
