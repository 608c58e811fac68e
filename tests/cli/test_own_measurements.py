"""A folder of one's own measurements: predicted by `validate DIR`, links fitted from it by `advise --calibrate DIR`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalewise.clusters.write import cluster_text
from scalewise.prediction.calibrate import scaled
from scalewise.prediction.cells import TimedCell, profile_from
from scalewise.prediction.predict import Predictor
from scalewise.results.environment import Environment
from scalewise.results.profile import Profile
from scalewise.results.store import Store
from scalewise.verbs.outline import outline_of
from tests.command import Run
from tests.prediction.test_cells import BOX, measured

MODEL = "synthetic:parameters=1000000,flops=1000000"
HERE = Environment(hardware={"cpu": "X", "cores": 2, "memory_bytes": 8e9, "gpus": []}, samples_per_epoch=16)
TRUTH = scaled(BOX, "devices", 0.25)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Three batches on one device and two, as a machine would give them whose links are a quarter of BOX's."""
    alone = [measured("single", 1, size, 0.001 * size, workload=MODEL, environment=HERE.id) for size in (2, 4, 8, 16)]
    profile = profile_from(outline_of(MODEL), alone, 16)
    spread = []
    for size in (4, 8, 16):
        cell = measured("mirrored", 2, size, 1.0, workload=MODEL, environment=HERE.id)
        seconds = Predictor(profile, TRUTH).simulate(TimedCell(cell, profile, 1.0).strategy, 2, size).step_seconds
        spread.append(measured("mirrored", 2, size, seconds, workload=MODEL, environment=HERE.id))
    with Store(tmp_path / "sweep") as store:
        store.add_environment(HERE)
        for each in [*alone, *spread]:
            store.append(each)
    Profile(profile.model_copy(update={"device": "one core of X"})).write(tmp_path / "profile.json")
    (tmp_path / "box.toml").write_text(cluster_text(BOX, []))
    return tmp_path / "sweep"


def test_they_are_predicted_from_their_one_device_cells(scalewise: Run, sweep: Path) -> None:
    said = scalewise("validate", sweep, "--json")
    [table] = json.loads(said.stdout)["tables"]
    assert (table["name"], table["cells"], table["in_sample"]) == ("sweep", 3, "other cells")
    assert table["median_error_percent"] < 5
    assert set(table["baselines"]) == {"linear scaling", "bytes / specification"}
    assert list(table["parts"]) == [f"{MODEL}, mirrored"]


def test_links_that_are_named_are_not_fitted(scalewise: Run, sweep: Path) -> None:
    said = scalewise("validate", sweep, "--cluster", sweep.parent / "box.toml", "--json")
    assert json.loads(said.stdout)["tables"][0]["in_sample"] == "no"
    other = scalewise("validate", sweep, "--cluster", "4x-gtx-1080-ti")
    other.refused(2, "was measured on one core of X", "name the cluster of the former, or none")
    assert "--step-time" not in other.stderr  # which validate has not
    scalewise("validate", "stevens", "--cluster", "4x-gtx-1080-ti").refused(2, "name the folder, too")


def test_links_fitted_to_a_folder_explain_it(scalewise: Run, sweep: Path) -> None:
    asked = ("--profile", sweep.parent / "profile.json", "--cluster", sweep.parent / "box.toml", "--batch", 16)
    plain = json.loads(scalewise("advise", *asked, "--strategy", "mirrored", "--json").stdout)
    said = scalewise("advise", *asked, "--strategy", "mirrored", "--calibrate", sweep, "--json")
    fitted = json.loads(said.stdout)
    [measured_cell] = [each for each in Store.read(sweep) if (each.devices, each.batch) == (2, 16)]
    assert measured_cell.step_seconds is not None
    assert fitted["profile"]["source"].endswith(f"links fitted to 3 cells of {sweep}")
    truth = measured_cell.step_seconds.median
    assert fitted["rows"][1]["step_seconds"]["predicted"] == pytest.approx(truth, rel=0.03)
    assert plain["rows"][1]["step_seconds"]["predicted"] < 0.97 * truth


def test_where_one_step_was_all_that_was_known_the_folder_tells_of_other_batches(scalewise: Run, sweep: Path) -> None:
    """Their steps go by the sample, which one figure at a small batch does not show: much of it may be launching."""
    asked = ("advise", MODEL, "--step-time", "0.002@2", "--cluster", sweep.parent / "box.toml", "--batch", 16)
    found = json.loads(scalewise(*asked, "--strategy", "mirrored", "--calibrate", sweep, "--json").stdout)
    assert found["profile"]["batches"] == [2, 4, 8, 16]
    assert found["profile"]["source"].endswith("and what one device took there")
    for row, devices in zip(found["rows"], (1, 2), strict=True):
        [cell] = [each for each in Store.read(sweep) if (each.devices, each.batch) == (devices, 16)]
        assert cell.step_seconds is not None
        assert row["step_seconds"]["predicted"] == pytest.approx(cell.step_seconds.median, rel=0.03)


def test_a_folder_without_several_devices_says_what_to_measure(scalewise: Run, tmp_path: Path) -> None:
    with Store(tmp_path / "alone") as store:
        store.add_environment(HERE)
        store.append(measured("single", 1, 4, 0.1, workload=MODEL, environment=HERE.id))
    scalewise("validate", tmp_path / "alone").refused(2, "no cell on several devices", "--devices 1,2")
