"""Profiles: writing, reading, validation and tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalewise.core.errors import RunFailed, UserError
from scalewise.formats.profile import InStep, LayerCost, Profile, ProfileDocument, StepCost

DOCUMENT = ProfileDocument(
    workload="linear",
    device="a card",
    execution="eager",
    samples_per_epoch=101,
    parameter_bytes=48_408_880,
    layers=(LayerCost(name="Linear-1", parameter_bytes=48_408_880, activation_bytes=40, flops=24_000_000),),
    steps=(StepCost(batch=10, forward=0.002, backward=0.003, update=0.001, load=0.0005, ready=(0.5, 1.0)),),
)


STEP = {"batch": 10, "forward": 0.002, "backward": 0.003, "update": 0.001, "load": 0.0}


def test_written_profiles_can_be_read(tmp_path: Path) -> None:
    Profile(DOCUMENT).write(tmp_path / "p.json")
    assert Profile.read(tmp_path / "p.json").document == DOCUMENT
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]


def test_optional_keys_can_be_left_out(tmp_path: Path) -> None:
    content = json.loads(DOCUMENT.model_dump_json())
    for key in ("precision", "data", "versions"):
        del content[key]
    (tmp_path / "p.json").write_text(json.dumps(content))
    assert Profile.read(tmp_path / "p.json").document == DOCUMENT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples_per_epoch": 0}, "samples_per_epoch: it must be greater than 0"),
        ({"parameter_bytes": -1}, "parameter_bytes: it must be greater than or equal to 0"),
        ({"steps": [{"batch": 0}]}, "steps.0.batch: it must be greater than 0"),
        ({"layers": 3}, "layers: it must be a"),
        ({"steps": [STEP | {"ready": [0.5, -3]}]}, "steps.0.ready.1: it must be greater than or equal to 0"),
        ({"steps": [STEP | {"ready": [5, 6]}]}, "steps.0.ready.0: it must be less than or equal to 1"),
        ({"steps": [STEP | {"ready": [0.5, 0.25]}]}, "steps.0.ready: it must be in ascending order"),
        ({"steps": [STEP | {"forward": float("nan")}]}, "steps.0.forward: it must be a finite number"),
        ({"steps": [STEP | {"forward": 1e300}]}, "steps.0.forward: it must be less than or equal to"),
        ({"steps": [STEP, STEP]}, "steps: a batch occurs twice"),
        ({"parameter_bytes": 4}, "layers: their parameters sum to 48,408,880 bytes, but parameter_bytes is 4"),
        ({"steps": []}, "steps: it must have at least one step"),
        (
            {"steps": [{"batch": 1, "forward": 0, "backward": 0, "update": 0, "load": 0}]},
            "steps.0: the phases sum to 0",
        ),
    ],
)
def test_error_names_the_invalid_key(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(json.loads(DOCUMENT.model_dump_json()) | change))
    with pytest.raises(UserError) as error:
        Profile.read(path)
    assert str(error.value).startswith(f"{path} is not a profile: {message}")


def test_step_seconds_are_the_sum_of_the_phases() -> None:
    assert DOCUMENT.steps[0].seconds == pytest.approx(0.0065)


def test_epoch_time_includes_the_short_last_step() -> None:
    text = str(Profile(DOCUMENT))
    for expected in ("linear on one device (a card), eager", "46.2 MiB", "101 samples", "6.5 ms", "650 µs", "71.5 ms"):
        assert expected in text


def test_step_times_of_several_devices_are_shown_in_a_second_table() -> None:
    [step] = DOCUMENT.steps
    slower = step.model_copy(update={"forward": 0.004})
    concurrent = (InStep(devices=1, steps=(step,)), InStep(devices=2, steps=(slower,)))
    *_, headings, row = str(Profile(DOCUMENT.model_copy(update={"in_step": concurrent}))).splitlines()
    assert headings.split() == ["batch", "1", "device", "2", "devices"]
    assert row.split() == ["10", "6.5", "ms", "8.5", "ms"]


def test_writing_to_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"cannot write .*: Is a directory"):
        Profile(DOCUMENT).write(tmp_path)
    assert not list(tmp_path.parent.glob(".*.part"))
