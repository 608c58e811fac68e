"""A full disk ends a run with one sentence and exit code 1; existing files stay complete."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewise.formats.store import Store
from tests.command import Run, finish, start
from tests.formats.test_store import HERE, cell

TINY = ("train", "tests.tiny:float32", "--batch", "4", "--steps")
LARGE = ("train", "synthetic", "--samples", "20", "--batch", "4", "--steps", "2")


def test_a_checkpoint_that_does_not_fit(full_disk: Path, scalewise: Run) -> None:
    path = full_disk / "c.safetensors"
    scalewise(*LARGE, "--checkpoint", path).refused(1, f"cannot write {path}: No space left on device")
    assert list(full_disk.iterdir()) == []


def test_the_previous_checkpoint_is_kept(full_disk: Path, scalewise: Run, fill: Callable[[Path], None]) -> None:
    path = full_disk / "c.safetensors"
    assert scalewise(*TINY, 2, "--checkpoint", path).code == 0
    before = path.read_bytes()
    fill(full_disk)
    scalewise(*TINY, 4, "--checkpoint", path, "--resume").refused(1, f"cannot write {path}: No space left on device")
    assert path.read_bytes() == before
    assert {entry.name for entry in full_disk.iterdir()} == {"c.safetensors", "filler"}


def test_a_trace_that_does_not_fit(full_disk: Path, scalewise: Run, fill: Callable[[Path], None]) -> None:
    fill(full_disk)
    path = full_disk / "trace.json"
    output = scalewise(*TINY, 2, "--trace", path, "--json")
    error = f"cannot write {path}: No space left on device"
    assert (output.code, output.stderr) == (1, f"scalewise: {error}\n")
    assert (json.loads(output.stdout)["steps"], json.loads(output.stdout)["notes"][-1]) == (2, error)
    assert not path.exists()


def test_a_profile_that_does_not_fit(
    full_disk: Path, scalewise: Run, fill: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalewise.probe.profile.SECONDS_PER_BATCH", 0.05)
    fill(full_disk)
    path = full_disk / "p.json"
    scalewise("profile", "tests.tiny:float32", "--batch", 4, "--out", path).refused(
        1, f"cannot write {path}: No space left on device"
    )
    assert not path.exists()


def test_a_sweep_that_does_not_fit_leaves_nothing(
    full_disk: Path, scalewise: Run, fill: Callable[[Path], None]
) -> None:
    fill(full_disk)
    line = ("measure", "tests.tiny:float32", "--strategy", "single", "--batch", "4", "--device-kind", "cpu")
    outcome = scalewise(*line, "--out", full_disk / "sweep")
    outcome.refused(1, f"cannot write {full_disk / 'sweep' / '.lock'}: No space left on device")
    assert [entry.name for entry in full_disk.iterdir()] == ["filler"]


def test_figures_that_do_not_fit(full_disk: Path, scalewise: Run) -> None:
    """The measurements fit on the disk, a figure does not."""
    with Store(full_disk) as store:
        store.add_environment(HERE)
        store.append(cell(10))
        store.append(cell(20))
    before = {entry.name for entry in full_disk.iterdir()}
    outcome = scalewise("report", full_disk)
    outcome.refused(1, f"cannot write {full_disk}/epochs-", ".png: No space left on device")
    assert {entry.name for entry in full_disk.iterdir()} == before


@pytest.mark.slow
def test_a_limit_on_file_sizes(folder: Path) -> None:
    """A limit on file sizes needs no mounted disk."""
    path = folder / "c.safetensors"
    process = start(*LARGE, "--checkpoint", path)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (16384, 16384))
    finish(process).refused(1, f"cannot write {path}: File too large")
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_a_result_that_cannot_be_written_is_printed_on_stderr() -> None:
    with Path("/dev/full").open("w") as full:
        outcome = finish(start(*TINY, 2, stdout=full, env_more={"PYTHONIOENCODING": "ascii"}))
    assert outcome.code == 1
    assert "batch     4 global" in outcome.stderr
    assert outcome.stderr.endswith("scalewise: cannot write the output: No space left on device\n")


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_standard_output_that_is_full(as_json: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        outcome = finish(start("list", "workloads", *as_json, stdout=full))
    outcome.refused(1, "cannot write the output: No space left on device")
