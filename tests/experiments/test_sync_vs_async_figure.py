"""The figure of synchronous beside asynchronous training: what is written in it."""

from __future__ import annotations

from pathlib import Path

from scalewise.experiments.sync_vs_async import conclude
from tests.experiments.conftest import one_dies, three_seeds


def test_the_figure_names_the_machine_and_the_deaths(tmp_path: Path) -> None:
    conclude(tmp_path, {0: one_dies()}, "2 cores of a machine", 2)
    drawn = (tmp_path / "sync-vs-async.svg").read_text()
    for words in (
        "3 processes on 2 cores of a machine",
        "synchronous: 8.0 s",
        "asynchronous: 6.4 s",
        "worker 1 killed, at 2.0 s and 9.0 s",
        "ended, resumed from its checkpoint",
    ):
        assert words in drawn


def test_several_seeds_are_a_line_each(tmp_path: Path) -> None:
    conclude(tmp_path, three_seeds(), "2 cores of a machine", 4)
    drawn = (tmp_path / "sync-vs-async.svg").read_text()
    for words in ("3 seeds, a line each", "asynchronous: 6.4 s, 4.8 s, 5.6 s", "asynchronous: 6.4 s, never, 5.6 s"):
        assert words in drawn
