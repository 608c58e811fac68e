"""Circumstances are remarked on where they matter."""

from __future__ import annotations

from scalewise.experiments.remarks import load_remarks, not_begun_remarks


def test_other_load_is_remarked_on() -> None:
    assert load_remarks(0.2, 2) == []
    assert "the load was 1.7 on 2 cores" in load_remarks(1.7, 2)[0]


def test_cells_that_were_not_begun_are_counted() -> None:
    assert not_begun_remarks(0) == []
    assert not_begun_remarks(1)[0].startswith("1 cell was not begun")
    assert not_begun_remarks(3)[0].startswith("3 cells were not begun")
