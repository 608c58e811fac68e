"""Locks: one writer at a time, and no lock file left behind."""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scalewise.core.errors import UserError
from scalewise.core.files import FILE, read_limited, sole_trainer, sole_writer, write_atomically

THREADS, ATTEMPTS = 4, 300


def test_lock_file_is_removed_at_the_end(tmp_path: Path) -> None:
    with sole_writer(tmp_path):
        assert (tmp_path / FILE).exists()
        with pytest.raises(UserError, match="is writing to"), sole_writer(tmp_path):
            pass
        assert (tmp_path / FILE).exists()
    assert list(tmp_path.iterdir()) == []


def test_each_checkpoint_has_its_own_lock(tmp_path: Path) -> None:
    checkpoint = tmp_path / "a.safetensors"
    with (
        sole_trainer(checkpoint),
        sole_trainer(tmp_path / "b.safetensors"),
        sole_writer(tmp_path),
        pytest.raises(UserError, match=f"is training with checkpoint {checkpoint}"),
        sole_trainer(checkpoint),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_lock_file_of_a_killed_process_does_not_block(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("4711\n")
    with sole_writer(tmp_path):
        assert (tmp_path / FILE).read_text() != "4711\n"
    assert list(tmp_path.iterdir()) == []


def test_only_one_writer_while_others_start_and_end(tmp_path: Path) -> None:
    """A lock on a file that was removed meanwhile does not count."""
    holders: list[int] = []
    holder_counts: list[int] = []

    def hold_repeatedly(number: int) -> int:
        held = 0
        for _ in range(ATTEMPTS):
            try:
                with sole_writer(tmp_path):
                    holders.append(number)
                    holder_counts.append(len(holders))
                    holders.remove(number)
                    held += 1
            except UserError:
                pass
        return held

    with ThreadPoolExecutor(THREADS) as threads:
        held = sum(threads.map(hold_repeatedly, range(THREADS)))
    assert held == len(holder_counts)
    assert set(holder_counts) == {1}
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """File outside the results folder that symbolic links lead to."""
    path = tmp_path / "precious"
    path.write_text("precious")
    (tmp_path / "out").mkdir()
    return path


@pytest.mark.parametrize("name", [".page.md.part", "page.md"])
def test_writing_follows_no_symbolic_link(name: str, precious: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / name).symlink_to(precious)
    write_atomically(out / "page.md", b"new")
    assert ((out / "page.md").read_bytes(), precious.read_text()) == (b"new", "precious")
    assert not (out / "page.md").is_symlink()


def test_a_lock_follows_no_symbolic_link(precious: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / FILE).symlink_to(precious)
    with pytest.raises(UserError, match=r"cannot write .*\.lock: it is a symbolic link"), sole_writer(tmp_path / "out"):
        pass
    assert precious.read_text() == "precious"


def test_the_next_write_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    abandoned, held, link = (tmp_path / f".a.{name}.part" for name in ("abandoned", "held", "link"))
    for path in (abandoned, held):
        path.write_text("half")
        os.utime(path, (0, 0))
    link.symlink_to(held)
    with held.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_atomically(tmp_path / "a", b"whole")
    assert {path.name for path in tmp_path.iterdir()} == {"a", held.name, link.name}


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(2**20 + 1))
    with pytest.raises(UserError, match="is larger than 1 MB"):
        read_limited(path, 2**20)
    assert len(read_limited(path, 2**21)) == 2**20 + 1
