"""`scalewise validate` from the command line."""

from __future__ import annotations

import json

from tests.command import Run


def test_one_document_with_a_row_per_table(scalewise: Run) -> None:
    output = scalewise("validate", "stevens", "--json")
    tables = json.loads(output.stdout)["tables"]
    assert output.code == 0
    assert [table["cells"] for table in tables] == [59, 12]
    assert tables[0]["in_sample"] == "no"
    assert tables[0]["choke_recall_percent"] == 100
    assert tables[0]["median_error_percent"] < tables[0]["baselines"]["linear scaling"]["median_error_percent"]


def test_the_table_fits_80_columns(scalewise: Run) -> None:
    output = scalewise("validate", "stevens")
    assert "…" not in output.stdout
    assert "29/29" in output.stdout
    assert max(map(len, output.stdout.splitlines())) <= 80


def test_an_unknown_table_lists_the_valid_ones(scalewise: Run) -> None:
    scalewise("validate", "steven").refused(2, "unknown table 'steven' (did you mean 'stevens'?); valid: stevens")


def test_a_table_of_one_device_names_the_qualities_and_fits_80_columns(scalewise: Run) -> None:
    lines = scalewise("validate", "one_gpu_cnn").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for expected in ("calibrated, one model", "scaled, other GPU", "specification"):
        assert any(expected in line for line in lines)
