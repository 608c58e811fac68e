"""The command in this process, recordings to train on, and disks that are full or read-only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.command import Run, in_process
from tests.data.conftest import write_wav


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and no recordings in the environment."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SCALEWISE_SPEECH", raising=False)
    return tmp_path / "cache" / "scalewise"


@pytest.fixture
def scalewise(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`scalewise("train", "linear", ...)`: what the command says."""
    return in_process(capfd, monkeypatch)


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    folder = tmp_path / "recordings"
    folder.mkdir()
    for number in range(6):
        write_wav(folder / f"{number}_theo_0.wav", [100 * number + step for step in range(50)])
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test looks for what was written, or half-written."""
    made = tmp_path / "out"
    made.mkdir()
    return made


def mounted(place: Path, options: str) -> Iterator[Path]:
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system with 16 KiB of room."""
    yield from mounted(tmp_path / "full", "size=16k")


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    if os.getuid() == 0:
        yield from mounted(tmp_path / "read-only", "ro")
    else:
        place = tmp_path / "read-only"
        place.mkdir(mode=0o500)
        yield place


@pytest.fixture
def fill() -> Callable[[Path], None]:
    """Leaves no room at all on a disk."""

    def filled(disk: Path) -> None:
        with (disk / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    return filled
