"""`scalewise measure` as a user sees it: lines, documents, exit codes, refusals, a bar."""

from __future__ import annotations

import json
import re
import sys
from io import StringIO
from pathlib import Path

import pytest

from scalewise.cli.measure import sweep_bar
from scalewise.cli.progress import telling
from scalewise.measuring.cell import Cell
from scalewise.results.statistics import Interval
from scalewise.results.store import Store
from scalewise.strategies.single import Single
from scalewise.verbs.sweep import Progress
from tests.command import Run

FAST = ("--device-kind", "cpu", "--interval", "1000")


def test_a_failed_cell_ends_the_command_with_1_and_leaves_the_document_whole(scalewise: Run, tmp_path: Path) -> None:
    line = ("measure", "tests.tiny_ranks:raises", "--strategy", "mirrored", "--batch", "8", "--out", tmp_path, *FAST)
    said = scalewise(*line, "--json")
    assert said.code == 1
    document = json.loads(said.stdout)
    assert document["cells"] == {"ok": 1, "oom": 0, "failed": 1, "skipped": 0, "not_begun": 0, "resumed": 0}
    first, second, last = said.stderr.splitlines()
    assert "tests.tiny_ranks:raises, mirrored on 2 cpu devices, batch 8: failed: rank 1 failed" in first + second
    width = r"\((95 % interval .* wide|all \d within .*|timed once)\)"
    assert re.search(rf"mirrored on 1 cpu device, batch 8: .* per step {width}, .* per epoch", said.stderr)
    assert re.match(r"scalewise: 1 of 2 cells failed, the first because .*a bug in the loss; --resume tries", last)
    again = scalewise(*line, "--resume")
    assert again.code == 1
    assert len(Store.read(tmp_path)) == 2
    assert "2 cells on cpu devices" in again.stdout
    assert "1 of them from before" in " ".join(again.stdout.split())


def test_out_of_memory_and_skipped_are_results(scalewise: Run, tmp_path: Path) -> None:
    line = ("measure", "tests.tiny_ranks:out_of_memory", "--strategy", "mirrored", "--devices", 2, "--batch", "8,99")
    said = scalewise(*line, "--out", tmp_path, *FAST, "--json")
    assert said.code == 0, said
    found = {each["batch"]: (each["status"], each["reason"]) for each in json.loads(said.stdout)["measurements"]}
    assert found[8][0] == "oom"
    assert "rank 1 ran out of memory: OutOfMemoryError" in found[8][1]
    assert found[99][0] == "skipped"
    assert "there are only 16 samples" in found[99][1]


def test_the_batch_may_be_meant_per_device(scalewise: Run, tmp_path: Path) -> None:
    line = ("measure", "tests.tiny:float32", "--strategy", "mirrored", "--batch-per-device", 3, "--devices", "1,2")
    said = scalewise(*line, "--out", tmp_path, *FAST, "--json")
    assert said.code == 0, said
    found = json.loads(said.stdout)["measurements"]
    assert [(each["devices"], each["batch"], each["batch_per_device"]) for each in found] == [(1, 3, 3), (2, 6, 3)]


REFUSED: dict[str, list[str]] = {
    "measure lineer": ["unknown workload 'lineer' (did you mean 'linear'?)"],
    "measure linear --strategy singel": ["unknown strategy 'singel' (did you mean 'single'?)"],
    "measure linear --devices 1,two": ["--devices is '1,two'", "whole numbers from 1, as in --devices 1,2,4"],
    "measure linear --epochs few": ["'--epochs': it must be a whole number, not 'few'"],
    "measure linear --batch 0": ["--batch is '0'"],
    "measure linear --batch=": ["--batch is ''; it must be whole numbers from 1, as in --batch 10,20,50"],
    "measure linear --batch-per-device=": ["--batch-per-device is ''"],
    "measure linear --link=": ["cannot read link ''"],
    "measure linear --link 1gbit": ["link '1gbit' joins rehearsed hosts; ask for them with --hosts 2"],
    "measure linear --batch 8 --batch-per-device 4": ["--batch and --batch-per-device exclude each other"],
    "measure linear --hosts 2": ["2 rehearsed hosts need the speed of their links", "--link 1gbit"],
    "measure linear --hosts 2 --link fast": ["cannot read link 'fast'", "1gbit"],
    "measure linear --interval 0": ["--interval is 0; it must be above 0"],
    "measure linear --budget -1": ["--budget is -1; it must be above 0"],
    "measure linear --epochs 3": ["--epochs 3 is for --protocol paper"],
    "measure linear --protocol paper --epochs 1": ["--epochs is 1; it must be at least 2"],
    "measure linear --protocol slow": ["'slow'", "'quick', 'paper'"],
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_one_sentence_and_no_measurement(line: str, scalewise: Run, tmp_path: Path) -> None:
    scalewise(*line.split(), "--out", tmp_path / "new").refused(2, *REFUSED[line])
    assert not list(tmp_path.glob("new/measurements.jsonl")) or not (tmp_path / "new/measurements.jsonl").read_bytes()


def test_a_folder_with_measurements_needs_resume(scalewise: Run, tmp_path: Path) -> None:
    line = ("measure", "tests.tiny:float32", "--strategy", "single", "--batch", "8", "--out", tmp_path, *FAST)
    first = scalewise(*line, "--resume")
    assert first.code == 0
    assert first.stderr.startswith(f"scalewise: there is nothing to resume in {tmp_path}; this sweep starts anew\n")
    assert f"1 cell on cpu devices, in {tmp_path}" in " ".join(first.stdout.split())
    before = (tmp_path / "measurements.jsonl").read_bytes()
    scalewise(*line).refused(2, f"{tmp_path} already holds 1 measurements", "--resume", "--out")
    again = scalewise(*line, "--resume")
    assert (again.code, again.stderr) == (0, "")
    assert (tmp_path / "measurements.jsonl").read_bytes() == before


def test_an_out_that_is_a_file_is_refused(scalewise: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    scalewise("measure", "linear", "--out", tmp_path / "file").refused(2, f"cannot make the folder {tmp_path / 'file'}")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_people_see_how_far_an_experiment_is_beside_its_spinner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    for stderr, seen in ((Terminal(), True), (StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stderr)
        with telling("stevens") as (tell, now):
            now("3/12 cells, [linear]")
            tell("a cell is through")
        assert ("stevens: 3/12 cells, [linear]" in stderr.getvalue()) == seen
        assert "a cell is through" in stderr.getvalue()


def test_people_see_a_bar_the_interval_under_way_and_a_line_per_cell(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert "linear, single on 1 cpu device, batch 20: 20 ms, 95 % interval 15.0% wide" in text
    assert (
        "linear, single on 1 cpu device, batch 20: 20 ms per step (95 % interval 15.0% wide), 2 s per epoch  [drift]\n"
        in text.replace("\r", "")
    )
