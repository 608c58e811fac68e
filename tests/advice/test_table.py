"""Cells of the table, which is narrow."""

from __future__ import annotations

import pytest

from scalewise.advice.table import dollars, folded, short_seconds


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("mirrored", ["mirrored"]),
        ("parameter-server", ["parameter-server"]),
        ("parameter-server-async", ["parameter-server", "-async"]),
        ("data-parallel:engine=threads", ["data-parallel", ":engine=threads"]),
    ],
)
def test_long_names_break_between_words(name: str, lines: list[str]) -> None:
    assert folded(name) == lines


@pytest.mark.parametrize(
    ("cost", "text"),
    [(None, "-"), (0.0234, "$0.02"), (99.4, "$99.40"), (345.0, "$345"), (12_345.0, "$12.3k"), (4_560_000.0, "$4.56M")],
)
def test_costs_keep_to_six_columns(cost: float | None, text: str) -> None:
    assert dollars(cost) == text


def test_long_epochs_have_one_unit() -> None:
    assert [short_seconds(each) for each in (4.31e-3, 125.0, 86_400.0)] == ["4.31 ms", "2.08 min", "24 h"]
