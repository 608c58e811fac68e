"""`scalewise report`: one JSON document, and one sentence for a folder without measurements."""

from __future__ import annotations

import json
from pathlib import Path

from tests.command import Run
from tests.findings.test_series import HERE, measured
from tests.verbs.test_report import stored


def test_a_folder_is_reported_as_one_json_document(scalewise: Run, folder: Path) -> None:
    stored(folder, HERE, [measured("single", 1, 10, 0.1), measured("mirrored", 2, 10, 0.3)])
    said = scalewise("report", folder, "--json")
    assert said.code == 0
    document = json.loads(said.stdout)
    assert document["measurements"] == 2
    assert document["findings"][0] == (
        "linear, mirrored: the one cell on several devices takes 3.0 times as long as one device "
        "(2 devices at batch 10)"
    )
    assert str(folder / "findings.md") in document["files"]
    assert (folder / "bars-linear-mirrored.png").exists()


def test_a_folder_without_measurements_is_one_sentence(scalewise: Run, folder: Path) -> None:
    scalewise("report", folder).refused(2, "no measurements in", "scalewise measure --out")
    scalewise("report", folder / "nowhere").refused(2, "no measurements in", "nowhere")
