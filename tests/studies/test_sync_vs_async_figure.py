"""Texts in the figure of synchronous and asynchronous training."""

from __future__ import annotations

from pathlib import Path

from scalewise.studies.sync_vs_async import conclude
from tests.studies.conftest import one_dies, three_seeds


def test_the_figure_names_the_machine_and_the_deaths(tmp_path: Path) -> None:
    conclude(tmp_path, {0: one_dies()}, "2 cores of a machine", 2)
    drawn = (tmp_path / "sync-vs-async.svg").read_text()
    for words in (
        "3 processes on 2 cores of a machine",
        "synchronous: 8.0 s",
        "asynchronous: 6.4 s",
        "worker 1 killed at 2.0 s and 9.0 s",
        "stopped, resumed from checkpoint",
    ):
        assert words in drawn


def test_every_seed_has_a_line(tmp_path: Path) -> None:
    conclude(tmp_path, three_seeds(), "2 cores of a machine", 4)
    drawn = (tmp_path / "sync-vs-async.svg").read_text()
    for words in ("One line per seed (3)", "asynchronous: 6.4 s, 4.8 s, 5.6 s", "asynchronous: 6.4 s, never, 5.6 s"):
        assert words in drawn
