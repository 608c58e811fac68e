"""Fixtures: the command in this process, recordings to train on, full and read-only disks."""

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
    """Use a separate cache folder and no recordings from the environment."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SCALEWISE_SPEECH", raising=False)
    return tmp_path / "cache" / "scalewise"


@pytest.fixture
def scalewise(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs the command: `scalewise("train", "linear", ...)`."""
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
    """Return an empty output folder."""
    path = tmp_path / "out"
    path.mkdir()
    return path


def mounted(place: Path, options: str) -> Iterator[Path]:
    place.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a real file system of 16 KiB."""
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
    """Return a function that fills a disk completely."""

    def filled(disk: Path) -> None:
        with (disk / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    return filled
