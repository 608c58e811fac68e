"""Predictions from given figures: several step times, their precision, and files of measured steps."""

from __future__ import annotations

from pathlib import Path

import pytest

import scalewise
from scalewise.advice.result import Advice
from scalewise.core.errors import UserError
from scalewise.hardware.catalogue import cluster_of
from scalewise.predict.predictor import Predictor

BOX = "4 x rtx-3090"
ROWS = (
    "model,devices,batch_per_device,step_seconds,strategy",
    "ResNet-50,1,32,0.1,",
    "ResNet-50,1,64,0.19,",
    "VGG16,1,32,0.15,",
)


def write(path: Path, *lines: str) -> Path:
    file = path / "steps.csv"
    file.write_text("\n".join([*ROWS, *lines]) + "\n")
    return file


def advise(**options: object) -> Advice:
    return scalewise.advise("ResNet-50", cluster=BOX, strategy="mirrored", batch=128, **options)  # type: ignore[arg-type]


def seconds(advice: Advice, devices: int) -> float:
    return next(row.prediction.seconds for row in advice.rows if row.prediction.devices == devices)


def test_several_step_times_are_interpolated() -> None:
    advice = advise(step_time=["0.1@32", "0.19@64", "0.4@128"])
    assert [step.batch for step in advice.profile.steps] == [32, 64, 128]
    assert seconds(advice, 1) == pytest.approx(0.4)
    assert advice.rows[0].prediction.known == "measured"
    with pytest.raises(UserError, match="at batch 32 is given 2 times"):
        advise(step_time=["0.1@32", "0.11@32"])


def test_16_bit_weights_halve_gradients_and_autocast_does_not() -> None:
    rows = {
        precision: advise(step_time="0.1@32", precision=precision) for precision in ("fp32", "bf16", "bf16-weights")
    }
    sizes = {precision: advice.profile.parameter_bytes for precision, advice in rows.items()}
    assert sizes["bf16"] == sizes["fp32"] == pytest.approx(2 * sizes["bf16-weights"], abs=1)
    assert seconds(rows["bf16"], 4) == seconds(rows["fp32"], 4) > seconds(rows["bf16-weights"], 4)
    plans = {
        precision: Predictor(advice.profile, cluster_of(BOX)).footprint.parameter_bytes
        for precision, advice in rows.items()
    }
    assert sum(plans["bf16-weights"]) == pytest.approx(sum(plans["fp32"]) / 2, rel=1e-6)
    memory = {precision: advice.rows[0].prediction.memory_bytes for precision, advice in rows.items()}
    assert memory["fp32"] > memory["bf16"] > memory["bf16-weights"]


def test_16_bit_weights_are_only_for_given_step_times() -> None:
    with pytest.raises(UserError, match="bf16-weights is only for given step times"):
        scalewise.advise("linear", cluster="4x-gtx-1080-ti", precision="bf16-weights")


def test_one_device_rows_are_the_profile_and_others_calibrate_the_links(tmp_path: Path) -> None:
    """The row on four devices is of another model."""
    plain = advise(measured=write(tmp_path))
    slow = advise(measured=write(tmp_path, "VGG16,4,32,0.6,mirrored"))
    assert [step.batch for step in plain.profile.steps] == [32, 64]
    assert plain.calibration is None
    assert slow.calibration is not None
    [factor] = slow.calibration.factors
    assert factor.low < factor.factor < 0.5
    assert seconds(slow, 4) > 1.2 * seconds(plain, 4)
    document = slow.to_json()["calibration"]
    assert document["residuals"][0]["row"] == "line 5: VGG16 mirrored on 4 devices"
    assert document["factors"][0]["factor"] == factor.factor


def test_rows_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    file = write(tmp_path, "VGG16,4,32,0.6,mirrored", "BERT base,2,8,0.3,")
    assert "line 6 left out" in advise(measured=file).source
    for line, message in {
        "VGG16,8,32,0.6,mirrored": "line 5: 8 devices on a host, but .* has 4",
        "VGG16,4,32,0.6,fast": "line 5: unknown strategy 'fast'",
    }.items():
        with pytest.raises(UserError, match=message):
            advise(measured=write(tmp_path, line))
    with pytest.raises(UserError, match="has no one-device row of alexnet at fp32"):
        scalewise.advise("alexnet", cluster=BOX, measured=file)


def test_a_file_is_a_table_and_its_two_device_rows_calibrate_a_second_one(tmp_path: Path) -> None:
    rows = [f"VGG16,{devices},32,{time},mirrored" for devices, time in ((2, 0.45), (4, 0.75))]
    tables = scalewise.validate(str(write(tmp_path, *rows)), cluster=BOX).tables
    assert [(table.name, len(table.cells)) for table in tables] == [("steps.csv", 2), ("steps.csv, calibrated", 1)]
    on_four = [table.cells[-1] for table in tables]
    assert abs(on_four[1].error) < abs(on_four[0].error)
    assert on_four[0].alone == pytest.approx(4 * 0.15)
    with pytest.raises(UserError, match="does not say on which cluster"):
        scalewise.validate(str(tmp_path / "steps.csv"))


def test_a_step_that_ran_fits_although_its_memory_is_estimated_as_too_large() -> None:
    """ResNet-152 at batch 256 is estimated at over 40 GB, but its step was timed on a device with 24 GB."""
    advice = scalewise.advise("ResNet-152", cluster=BOX, strategy="mirrored", step_time="2.4@256", batch=256)
    assert advice.rows[0].prediction.memory_bytes > 24e9
    assert all(row.fits for row in advice.rows)
    assert "memory: unknown" in advice.source


def test_a_batch_that_ran_on_several_devices_fits_although_none_of_one_device_was_that_large(tmp_path: Path) -> None:
    rows = ("ResNet-152,1,8,0.12,", "ResNet-152,2,256,2.6,mirrored")
    advices = [
        scalewise.advise("ResNet-152", cluster=BOX, measured=write(tmp_path, *lines), strategy="mirrored", batch=512)
        for lines in (rows[:1], rows)
    ]
    fits = [{row.prediction.devices: row.fits for row in advice.rows} for advice in advices]
    assert not fits[0][2]  # 256 samples per device are estimated at over 40 GB
    assert fits[1][2]
    assert "memory: unknown" in advices[1].source
