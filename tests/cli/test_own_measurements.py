"""Own measurements in `validate DIR` and `advise --calibrate DIR`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalewise.formats.profile import Profile
from scalewise.formats.store import Environment, Store
from scalewise.hardware.cluster import cluster_text
from scalewise.predict.calibration import TimedCell, profile_from, scaled
from scalewise.predict.predictor import Predictor
from scalewise.probe.untimed_profile import outline_of
from tests.command import Run
from tests.predict.test_calibration import BOX, measured

MODEL = "synthetic:parameters=1000000,flops=1000000"
HERE = Environment(hardware={"cpu": "X", "cores": 2, "memory_bytes": 8e9, "gpus": []}, samples_per_epoch=16)
TRUTH = scaled(BOX, "devices", 0.25)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Write cells of three batches on one and two devices, with links of a quarter of BOX's bandwidth."""
    alone = [measured("single", 1, size, 0.001 * size, workload=MODEL, environment=HERE.id) for size in (2, 4, 8, 16)]
    profile = profile_from(outline_of(MODEL), alone, 16)
    spread = []
    for size in (4, 8, 16):
        cell = measured("mirrored", 2, size, 1.0, workload=MODEL, environment=HERE.id)
        seconds = Predictor(profile, TRUTH).simulate(TimedCell(cell, profile, 1.0).strategy, 2, size).step_seconds
        spread.append(measured("mirrored", 2, size, seconds, workload=MODEL, environment=HERE.id))
    with Store(tmp_path / "sweep") as store:
        store.add_environment(HERE)
        for measurement in [*alone, *spread]:
            store.append(measurement)
    Profile(profile.model_copy(update={"device": "one core of X"})).write(tmp_path / "profile.json")
    (tmp_path / "box.toml").write_text(cluster_text(BOX, []))
    return tmp_path / "sweep"


def test_own_cells_are_predicted_from_single_device_cells(scalewise: Run, sweep: Path) -> None:
    output = scalewise("validate", sweep, "--json")
    [table] = json.loads(output.stdout)["tables"]
    assert (table["name"], table["cells"], table["in_sample"]) == ("sweep", 3, "other cells")
    assert table["median_error_percent"] < 5
    assert set(table["baselines"]) == {"linear scaling", "bytes / specification"}
    assert list(table["parts"]) == [f"{MODEL}, mirrored"]


def test_links_of_a_given_cluster_are_not_fitted(scalewise: Run, sweep: Path) -> None:
    output = scalewise("validate", sweep, "--cluster", sweep.parent / "box.toml", "--json")
    assert json.loads(output.stdout)["tables"][0]["in_sample"] == "no"
    other = scalewise("validate", sweep, "--cluster", "4x-gtx-1080-ti")
    other.refused(2, "was measured on one core of X", "give the cluster on which it was measured")
    assert "--step-time" not in other.stderr  # which validate has not
    scalewise("validate", "stevens", "--cluster", "4x-gtx-1080-ti").refused(2, "name the folder")


def test_calibrated_links_reproduce_the_measurements(scalewise: Run, sweep: Path) -> None:
    arguments = ("--profile", sweep.parent / "profile.json", "--cluster", sweep.parent / "box.toml", "--batch", 16)
    plain = json.loads(scalewise("advise", *arguments, "--strategy", "mirrored", "--json").stdout)
    output = scalewise("advise", *arguments, "--strategy", "mirrored", "--calibrate", sweep, "--json")
    fitted = json.loads(output.stdout)
    [measured_cell] = [
        measurement for measurement in Store.read(sweep) if (measurement.devices, measurement.batch) == (2, 16)
    ]
    assert measured_cell.step_seconds is not None
    assert fitted["profile"]["source"].endswith(f"links calibrated to 3 cells of {sweep}")
    calibration = fitted["calibration"]
    assert [factor["link_class"] for factor in calibration["factors"]] == ["devices: sockets"]
    assert len(calibration["residuals"]) == 3
    truth = measured_cell.step_seconds.median
    assert fitted["rows"][1]["step_seconds"]["predicted"] == pytest.approx(truth, rel=0.03)
    assert plain["rows"][1]["step_seconds"]["predicted"] < 0.97 * truth


def test_calibration_adds_single_device_steps_to_a_step_time(scalewise: Run, sweep: Path) -> None:
    """The measured steps scale with the batch, which one step time at a small batch cannot show."""
    arguments = ("advise", MODEL, "--step-time", "0.002@2", "--cluster", sweep.parent / "box.toml", "--batch", 16)
    document = json.loads(scalewise(*arguments, "--strategy", "mirrored", "--calibrate", sweep, "--json").stdout)
    assert document["profile"]["batches"] == [2, 4, 8, 16]
    assert document["profile"]["source"].endswith("and its step times of one device")
    for row, devices in zip(document["rows"], (1, 2), strict=True):
        [cell] = [
            measurement
            for measurement in Store.read(sweep)
            if (measurement.devices, measurement.batch) == (devices, 16)
        ]
        assert cell.step_seconds is not None
        assert row["step_seconds"]["predicted"] == pytest.approx(cell.step_seconds.median, rel=0.03)


def test_a_folder_without_several_devices_says_what_to_measure(scalewise: Run, tmp_path: Path) -> None:
    with Store(tmp_path / "alone") as store:
        store.add_environment(HERE)
        store.append(measured("single", 1, 4, 0.1, workload=MODEL, environment=HERE.id))
    scalewise("validate", tmp_path / "alone").refused(2, "no cell on several devices", "--devices 1,2")
