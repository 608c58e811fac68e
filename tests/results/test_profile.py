"""Profiles: a JSON file that is read as it was written, and read without torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalewise.errors import RunFailed, UserError
from scalewise.results.profile import InStep, LayerCost, Profile, ProfileDocument, StepCost

DOCUMENT = ProfileDocument(
    workload="linear",
    device="a card",
    execution="eager",
    samples_per_epoch=101,
    parameter_bytes=48_408_880,
    layers=(LayerCost(name="Linear-1", parameter_bytes=48_408_880, activation_bytes=40, flops=24_000_000),),
    steps=(StepCost(batch=10, forward=0.002, backward=0.003, update=0.001, load=0.0005, ready=(0.5, 1.0)),),
)


def test_it_reads_what_it_wrote(tmp_path: Path) -> None:
    Profile(DOCUMENT).write(tmp_path / "p.json")
    assert Profile.read(tmp_path / "p.json").document == DOCUMENT
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]


def test_a_published_profile_needs_only_the_contracts_keys(tmp_path: Path) -> None:
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
    ],
)
def test_impossible_values_are_told_with_their_place(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(json.loads(DOCUMENT.model_dump_json()) | change))
    with pytest.raises(UserError) as error:
        Profile.read(path)
    assert str(error.value).startswith(f"{path} is not a profile: {message}")


def test_seconds_are_the_sum_of_the_parts() -> None:
    assert DOCUMENT.steps[0].seconds == pytest.approx(0.0065)


def test_the_table_counts_the_short_last_step_of_an_epoch() -> None:
    text = str(Profile(DOCUMENT))
    for expected in ("linear on one device (a card), eager", "46.2 MiB", "101 samples", "6.5 ms", "650 µs", "71.5 ms"):
        assert expected in text


def test_devices_at_once_have_a_table_of_their_own() -> None:
    [step] = DOCUMENT.steps
    slower = step.model_copy(update={"forward": 0.004})
    together = (InStep(devices=1, steps=(step,)), InStep(devices=2, steps=(slower,)))
    *_, titles, row = str(Profile(DOCUMENT.model_copy(update={"in_step": together}))).splitlines()
    assert (titles.split(), row.split()) == (["batch", "1", "2"], ["10", "6.5", "ms", "8.5", "ms"])


def test_a_folder_in_its_way_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"cannot write .*: Is a directory"):
        Profile(DOCUMENT).write(tmp_path)
    assert not list(tmp_path.parent.glob(".*.part"))
