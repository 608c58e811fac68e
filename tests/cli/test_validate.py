"""`scalewise validate` from the command line."""

from __future__ import annotations

import json

from tests.command import Run


def test_one_document_with_a_row_per_table(scalewise: Run) -> None:
    said = scalewise("validate", "stevens", "--json")
    tables = json.loads(said.stdout)["tables"]
    assert said.code == 0
    assert [table["cells"] for table in tables] == [59, 12]
    assert tables[0]["in_sample"] == "no"
    assert tables[0]["choke_recall_percent"] == 100
    assert tables[0]["median_error_percent"] < tables[0]["baselines"]["linear scaling"]["median_error_percent"]


def test_people_get_a_table_that_fits_their_terminal(scalewise: Run) -> None:
    said = scalewise("validate", "stevens")
    assert "…" not in said.stdout
    assert "29/29" in said.stdout
    assert max(map(len, said.stdout.splitlines())) <= 80


def test_an_unknown_table_is_answered_with_those_there_are(scalewise: Run) -> None:
    scalewise("validate", "steven").refused(2, "unknown table 'steven' (did you mean 'stevens'?); valid: stevens")
