"""Published tables and their sources."""

from __future__ import annotations

from scalewise.published.tables import STEVENS, load_stevens


def test_table_of_the_study_is_complete() -> None:
    rows = load_stevens()
    assert len(rows) == 96
    assert len({(row.workload, row.devices, row.batch) for row in rows}) == 96
    assert {row.workload for row in rows} == {"linear", "conv"}
    assert {row.devices for row in rows} == {1, 2, 3, 4}
    assert {row.batch for row in rows} == {10, 20, 30, 50, 70, 100, 150, 200, 300, 400, 500, 600}


def test_cells_equal_the_published_values() -> None:
    seconds = {(row.workload, row.devices, row.batch): row.epoch_seconds for row in load_stevens()}
    assert seconds["linear", 1, 10] == 1.0062
    assert seconds["linear", 2, 20] == 4.5610
    assert seconds["conv", 4, 50] == 0.8539


def test_table_of_the_study_has_its_source() -> None:
    assert "Stevens" in STEVENS.citation
    assert STEVENS.year == 2020
