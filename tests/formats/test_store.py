"""Folder of measurements: complete lines, one writer, the latest measurement per cell, clear errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scalewise.core.errors import UserError
from scalewise.core.statistics import Interval
from scalewise.core.timeline import Lane, RecordedStep
from scalewise.formats.store import Environment, Measurement, Store
from scalewise.formats.train_result import BytesPerStep

CONTRACT = (
    "schema workload strategy options devices device_kind hosts link batch batch_per_device precision optimizer "
    "protocol execution step_seconds epoch_seconds phases bytes_per_step peak_memory_bytes status reason flags "
    "environment started"
)
HERE = Environment(hardware={"cpu": "a core"}, versions={"torch": "2.11"}, samples_per_epoch=100)


def cell(batch: int = 10, **more: object) -> Measurement:
    measurement = Measurement(
        workload="linear",
        strategy="mirrored",
        options={"bucket_MB": 25.0},
        devices=2,
        device_kind="cpu",
        batch=batch,
        batch_per_device=batch // 2,
        optimizer="adam",
        protocol="quick",
        execution="eager",
        step_seconds=Interval(0.02, 0.019, 0.021, 30),
        epoch_seconds=0.5,
        phases={"forward": 0.01, "backward": 0.01},
        bytes_per_step=BytesPerStep(1000, 1000, 1000),
        flags=["drift"],
        environment=HERE.id,
        started="2026-11-15T10:00:00+00:00",
    )
    return replace(measurement, **more)  # type: ignore[arg-type]


def failed(batch: int) -> Measurement:
    return cell(batch, status="failed", reason="rank 1 was killed (signal 9)", step_seconds=None, epoch_seconds=None)


def filled(folder: Path, *measurements: Measurement) -> Path:
    with Store(folder) as store:
        store.add_environment(HERE)
        for measurement in measurements:
            store.append(measurement)
    return folder / "measurements.jsonl"


def test_appended_measurements_can_be_read(tmp_path: Path) -> None:
    filled(tmp_path / "new", cell(10), failed(20))
    assert Store.read(tmp_path / "new") == [cell(10), failed(20)]
    assert Store.environments(tmp_path / "new") == {HERE.id: HERE}


def test_keys_of_a_line_and_their_order(tmp_path: Path) -> None:
    document = json.loads(filled(tmp_path, cell()).read_text())
    assert " ".join(document) == CONTRACT
    assert document["step_seconds"] == {"median": 0.02, "low": 0.019, "high": 0.021, "n": 30}
    assert {"planned": 1000, "traced": 1000, "busiest": 1000}.items() <= document["bytes_per_step"].items()


def test_a_recorded_step_is_the_last_key_of_a_line(tmp_path: Path) -> None:
    step = RecordedStep(0.02, [Lane(0, "compute", [("forward", 0, 5000)])])
    document = json.loads(filled(tmp_path, cell(timeline=step)).read_text())
    assert " ".join(document) == f"{CONTRACT} timeline"
    assert document["timeline"]["lanes"] == [{"rank": 0, "lane": "compute", "spans": [["forward", 0, 5000]]}]
    assert Store.read(tmp_path) == [cell(timeline=step)]


def test_a_line_is_on_the_disk_before_the_store_is_closed(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add_environment(HERE)
        store.append(cell())
        assert Store.read(tmp_path) == [cell()]


def test_the_latest_measurement_of_a_cell_counts(tmp_path: Path) -> None:
    filled(tmp_path, failed(10), cell(20))
    filled(tmp_path, cell(10))
    assert Store.read(tmp_path) == [cell(20), cell(10)]


@pytest.mark.parametrize(
    ("field", "other"),
    [("workload", "conv"), ("options", {"bucket_MB": 1.0}), ("link", "1gbit"), ("protocol", "paper"), ("batch", 11)],
)
def test_fields_before_step_seconds_identify_a_cell(field: str, other: object) -> None:
    assert replace(cell(), **{field: other}).identity != cell().identity  # type: ignore[arg-type]


def test_results_do_not_identify_a_cell(tmp_path: Path) -> None:
    assert failed(10).identity == cell(10, environment="x", started="later").identity
    assert Store.read(filled(tmp_path, cell(10, options={"b": 1, "a": 2}), cell(10, options={"a": 2, "b": 1})).parent)
    assert len(Store.read(tmp_path)) == 1


def test_equal_cells_of_different_folders_stay_separate(tmp_path: Path) -> None:
    filled(tmp_path / "here", cell(10))
    filled(tmp_path / "there", cell(10), cell(20))
    assert Store.read(tmp_path / "here", tmp_path / "there") == [cell(10), cell(10), cell(20)]


@pytest.mark.parametrize("kept_bytes", [1, 40, -2])
def test_an_incomplete_last_line_is_skipped_and_then_removed(tmp_path: Path, kept_bytes: int) -> None:
    path = filled(tmp_path, cell(10))
    whole = path.read_bytes()
    path.write_bytes(whole + cell(20).to_line()[:kept_bytes])
    assert Store.read(tmp_path) == [cell(10)]
    with Store(tmp_path) as store:
        assert path.read_bytes() == whole
        store.append(cell(30))
    assert Store.read(tmp_path) == [cell(10), cell(30)]


def test_a_last_line_without_newline_is_kept(tmp_path: Path) -> None:
    path = filled(tmp_path, cell(10))
    path.write_bytes(path.read_bytes() + cell(20).to_line()[:-1])
    assert Store.read(tmp_path) == [cell(10), cell(20)]
    filled(tmp_path, cell(30))
    assert Store.read(tmp_path) == [cell(10), cell(20), cell(30)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"schema": 1, "worklo\n', "line 2 is not a measurement: Invalid JSON"),
        ("\n", "line 2 is not a measurement: Invalid JSON"),
        (cell().to_line().decode().replace('"devices": 2', '"devices": "two"'), "line 2 is not a measurement: devices"),
        (
            cell().to_line().decode().replace('"schema": 1', '"schema": 2'),
            "line 2: schema is 2, but this version of Scalewise reads 1",
        ),
        (cell().to_line().decode().replace('"status": "ok"', '"status": "oom"'), "'oom' without a reason"),
    ],
)
def test_error_names_the_invalid_line(tmp_path: Path, line: str, message: str) -> None:
    path = filled(tmp_path, cell(10))
    path.write_text(path.read_text() + line + cell(20).to_line().decode())
    before = path.read_bytes()
    for attempt in (lambda: Store.read(tmp_path), lambda: Store(tmp_path).__enter__()):
        with pytest.raises(UserError) as error:
            attempt()
        assert str(path) in str(error.value)
        assert message in str(error.value)
    assert path.read_bytes() == before


def test_error_names_a_folder_without_measurements(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"no measurements in {tmp_path}: there is no measurements.jsonl"):
        Store.read(tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "is missing or empty"), ("{}", "is missing or empty"), ("other", f"lacks {HERE.id}")],
)
def test_error_names_a_missing_environment(tmp_path: Path, content: str | None, problem: str) -> None:
    path = filled(tmp_path, cell()).parent / "environment.json"
    path.unlink()
    if content == "other":
        other = Environment(hardware={"cpu": "another"})
        path.write_text(json.dumps({other.id: other.model_dump()}))
    elif content:
        path.write_text(content)
    with pytest.raises(UserError, match=rf"^{path} {problem}, and {tmp_path / 'measurements.jsonl'}"):
        Store.environments(tmp_path)


def test_appending_with_an_unknown_environment_is_an_error(tmp_path: Path) -> None:
    with Store(tmp_path) as store, pytest.raises(KeyError, match="is not in the store"):
        store.append(cell())


def test_error_of_a_second_writer_names_the_first(tmp_path: Path) -> None:
    script = (
        "import sys, signal\n"
        "from scalewise.formats.store import Store\n"
        "with Store(sys.argv[1]):\n"
        "    print('open', flush=True)\n"
        "    signal.pause()\n"
    )
    other = subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    with pytest.raises(UserError, match=rf"process {other.pid} is writing to {tmp_path}; wait .* --out"):
        Store(tmp_path).__enter__()
    other.send_signal(signal.SIGKILL)
    other.communicate()
    filled(tmp_path, cell())
    assert Store.read(tmp_path) == [cell()]


def test_a_full_disk_leaves_complete_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path) as store:
        store.add_environment(HERE)
        store.append(cell(10))
        monkeypatch.setattr(os, "fsync", _no_space)
        with pytest.raises(Exception, match="No space left on device"):
            store.append(cell(20))
    assert Store.read(tmp_path) == [cell(10)]


def _no_space(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_store_without_measurements_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "deep" / "new", tmp_path / "there"):
        with Store(folder) as store:
            store.add_environment(HERE)
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]
