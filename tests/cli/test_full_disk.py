"""A disk that is full ends a run with one sentence and exit 1; what was there stays whole, nothing is half-written."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewise.results.store import Store
from tests.command import Run, finish, start
from tests.results.test_store import HERE, cell

TINY = ("train", "tests.tiny:float32", "--batch", "4", "--steps")
LARGE = ("train", "synthetic", "--samples", "20", "--batch", "4", "--steps", "2")


def test_a_checkpoint_that_does_not_fit(full_disk: Path, scalewise: Run) -> None:
    path = full_disk / "c.safetensors"
    scalewise(*LARGE, "--checkpoint", path).refused(1, f"cannot write {path}: No space left on device")
    assert list(full_disk.iterdir()) == []


def test_the_checkpoint_before_stays(full_disk: Path, scalewise: Run, fill: Callable[[Path], None]) -> None:
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
    scalewise(*TINY, 2, "--trace", path).refused(1, f"cannot write {path}: No space left on device")
    assert not path.exists()


def test_a_profile_that_does_not_fit(
    full_disk: Path, scalewise: Run, fill: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalewise.verbs.profiler.SECONDS_PER_BATCH", 0.05)
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
    said = scalewise(*line, "--out", full_disk / "sweep")
    said.refused(1, f"cannot write {full_disk / 'sweep' / '.lock'}: No space left on device")
    assert [entry.name for entry in full_disk.iterdir()] == ["filler"]


def test_figures_that_do_not_fit(full_disk: Path, scalewise: Run) -> None:
    """There is room for the measurements, none for a figure of them."""
    with Store(full_disk) as store:
        store.add_environment(HERE)
        store.append(cell(10))
        store.append(cell(20))
    before = {entry.name for entry in full_disk.iterdir()}
    said = scalewise("report", full_disk)
    said.refused(1, f"cannot write {full_disk}/epochs-", ".png: No space left on device")
    assert {entry.name for entry in full_disk.iterdir()} == before


def test_a_limit_on_file_sizes(folder: Path) -> None:
    """As a quota would: also where no disk can be mounted for the test."""
    path = folder / "c.safetensors"
    process = start(*LARGE, "--checkpoint", path)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (16384, 16384))
    finish(process).refused(1, f"cannot write {path}: File too large")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_standard_output_that_is_full(json: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        said = finish(start("list", "workloads", *json, stdout=full))
    said.refused(1, "cannot write the output: No space left on device")
