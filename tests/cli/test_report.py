"""`scalewise report` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalewise.formats.store import Environment
from tests.command import Run
from tests.reporting.test_report import stored
from tests.reporting.test_series import HERE, measured


def test_a_folder_is_reported_as_one_json_document(scalewise: Run, folder: Path) -> None:
    stored(folder, HERE, [measured("single", 1, 10, 0.1), measured("mirrored", 2, 10, 0.3)])
    output = scalewise("report", folder, "--json")
    assert output.code == 0
    document = json.loads(output.stdout)
    assert document["measurements"] == 2
    assert document["findings"][0] == (
        "linear, mirrored: the only cell on several devices takes 3.0 times as long as one device "
        "(2 devices at batch 10)"
    )
    assert str(folder / "findings.md") in document["files"]
    assert (folder / "bars-linear-mirrored.png").exists()


@pytest.mark.slow
def test_the_published_cells_are_drawn_without_a_folder_of_measurements(scalewise: Run, folder: Path) -> None:
    output = scalewise("report", "--published", "--out", folder / "study", "--json")
    assert output.code == 0
    document = json.loads(output.stdout)
    assert document["measurements"] == 96
    assert "linear, data-parallel:engine=threads: more devices are never faster" in document["findings"][0]
    for workload in ("linear", "conv"):
        for kind in ("epochs", "bars"):
            assert (folder / "study" / f"{kind}-{workload}-data-parallel-engine-threads.png").exists()
    assert (folder / "study" / "findings.md").read_text().startswith("# Report on the study's published cells\n")


@pytest.mark.slow
def test_the_published_cells_are_read_together_with_ones_own(scalewise: Run, folder: Path) -> None:
    stored(folder, HERE, [measured("single", 1, 10, 0.1), measured("mirrored", 2, 10, 0.3)])
    document = json.loads(scalewise("report", folder, "--published", "--json").stdout)
    assert document["measurements"] == 98
    page = (folder / "findings.md").read_text()
    assert page.startswith(f"# Report on {folder.name} and the study's published cells\n")
    assert "| linear | single, cpu, quick protocol, 2 cores of Some CPU | 1 |" in page
    assert "## conv, data-parallel:engine=threads" in page


def test_what_is_missing_is_one_sentence(scalewise: Run) -> None:
    scalewise("report").refused(2, "no measurements given", "scalewise report DIR")
    scalewise("report", "--published").refused(
        2, "--published needs a folder", "scalewise report --published --out DIR"
    )


def test_an_out_that_cannot_be_a_folder_is_one_sentence(scalewise: Run, folder: Path) -> None:
    stored(folder, HERE, [measured("single", 1, 10, 0.1), measured("mirrored", 2, 10, 0.3)])
    file = folder / "file"
    file.write_text("")
    scalewise("report", folder, "--out", file).refused(2, f"--out is {file}, which is a file; name a folder")
    scalewise("report", folder, "--out", file / "in").refused(
        2, f"cannot create the folder {file / 'in'}: Not a directory"
    )


def test_a_folder_without_measurements_is_one_sentence(scalewise: Run, folder: Path) -> None:
    scalewise("report", folder).refused(2, "no measurements in", "scalewise measure --out")
    scalewise("report", folder / "nowhere").refused(2, "no measurements in", "nowhere")


def test_measurements_without_their_environments_are_one_sentence(scalewise: Run, folder: Path) -> None:
    stored(folder, HERE, [measured("single", 1, 10, 0.1)])
    (folder / "environment.json").unlink()
    scalewise("report", folder).refused(2, "environment.json is missing or empty", "copy the environment.json")


def test_runs_of_two_machines_are_read_together(scalewise: Run, folder: Path) -> None:
    there = Environment(hardware={"cpu": "Other CPU", "cores": 64}, samples_per_epoch=95)
    stored(folder / "here", HERE, [measured("single", 1, 10, 0.1), measured("mirrored", 2, 10, 0.3)])
    cells = [
        measured("single", 1, 10, 0.4, environment=there.id),
        measured("mirrored", 2, 10, 0.2, environment=there.id),
    ]
    stored(folder / "there", there, cells)
    output = scalewise("report", folder / "here", folder / "there", "--out", folder / "both", "--json")
    assert output.code == 0
    document = json.loads(output.stdout)
    assert document["measurements"] == 4
    assert document["findings"][:4:2] == [
        "linear, mirrored, 2 cores of Some CPU: the only cell on several devices takes 3.0 times as long as one device "
        "(2 devices at batch 10)",
        "linear, mirrored, 64 cores of Other CPU: the only cell on several devices is faster than one device",
    ]
    assert str(folder / "both" / "findings.md") in document["files"]
    assert not (folder / "here" / "findings.md").exists()


def test_a_restarted_machine_is_the_same_machine(scalewise: Run, folder: Path) -> None:
    """After a restart the memory size differs by a few pages."""
    before, after = (
        Environment(hardware={**HERE.hardware, "memory_bytes": pages * 4096}, samples_per_epoch=95)
        for pages in (999, 998)
    )
    stored(
        folder / "a",
        before,
        [
            measured("single", 1, 10, 0.1, environment=before.id),
            measured("mirrored", 2, 10, 0.3, environment=before.id),
        ],
    )
    stored(
        folder / "b",
        after,
        [measured("mirrored", 2, 10, 0.05, environment=after.id, started="2026-11-16T10:00:00+00:00")],
    )
    document = json.loads(scalewise("report", folder / "a", folder / "b", "--json").stdout)
    assert document["measurements"] == 2
    assert document["findings"][0] == "linear, mirrored: the only cell on several devices is faster than one device"


def test_the_later_of_two_measurements_counts(scalewise: Run, folder: Path) -> None:
    first = [measured("single", 1, 10, 0.1), measured("mirrored", 2, 10, 0.3)]
    later = [measured("mirrored", 2, 10, 0.05, started="2026-11-16T10:00:00+00:00")]
    stored(folder / "later", HERE, later)
    stored(folder / "first", HERE, first)
    document = json.loads(scalewise("report", folder / "later", folder / "first", "--json").stdout)
    assert document["measurements"] == 2
    assert document["findings"][0] == "linear, mirrored: the only cell on several devices is faster than one device"
