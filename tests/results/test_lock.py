"""One writer at a time, and no file left behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scalewise.errors import UserError
from scalewise.results.lock import FILE, sole_writer

THREADS, ATTEMPTS = 4, 300


def test_the_file_goes_with_the_writer(tmp_path: Path) -> None:
    with sole_writer(tmp_path):
        assert (tmp_path / FILE).exists()
        with pytest.raises(UserError, match="is writing to"), sole_writer(tmp_path):
            pass
        assert (tmp_path / FILE).exists()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_locks_nobody_out(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("4711\n")
    with sole_writer(tmp_path):
        assert (tmp_path / FILE).read_text() != "4711\n"
    assert list(tmp_path.iterdir()) == []


def test_writers_that_come_as_another_leaves_are_alone(tmp_path: Path) -> None:
    """The lock of a file that has lost its name is none."""
    inside: list[int] = []
    together: list[int] = []

    def writes(number: int) -> int:
        done = 0
        for _ in range(ATTEMPTS):
            try:
                with sole_writer(tmp_path):
                    inside.append(number)
                    together.append(len(inside))
                    inside.remove(number)
                    done += 1
            except UserError:
                pass
        return done

    with ThreadPoolExecutor(THREADS) as threads:
        done = sum(threads.map(writes, range(THREADS)))
    assert done == len(together)
    assert set(together) == {1}
    assert list(tmp_path.iterdir()) == []
