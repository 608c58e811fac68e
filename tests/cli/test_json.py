"""`--json` puts exactly one JSON document on stdout, with the keys other programs rely on, and nothing on stderr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scalewise.data import download
from scalewise.models.catalogue import CATALOGUE, PUBLISHED
from scalewise.strategies.registry import STRATEGIES
from tests.command import Output, Run
from tests.data.test_download import ARCHIVE, SHA256, serving

TRAIN = {
    "workload", "strategy", "options", "devices", "device_kind", "hosts", "link", "batch", "batch_per_device",
    "precision", "steps", "epochs", "epoch_seconds", "step_seconds", "loss", "accuracy", "phases", "bytes_per_step",
    "parameters", "execution",
}  # fmt: skip
BESIDE = {
    "data", "load", "memory", "peak_memory_bytes", "phases_rank", "samples_per_second", "notes", "checkpoint",
    "already_finished", "restarts", "compile_mode", "compile_seconds", "convolutions", "memory_format",
}  # fmt: skip
DESCRIBE = {
    "workload", "parameters", "parameter_bytes", "input_bytes", "forward_backward_bytes", "flops_per_sample", "layers",
}  # fmt: skip
PROFILE = {"workload", "device", "execution", "samples_per_epoch", "parameter_bytes", "layers", "steps"}


def document_of(output: Output) -> Any:
    """Parse the one document strictly: NaN is refused."""
    assert (output.code, output.stderr) == (0, "")

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(output.stdout, parse_constant=refuse)


def test_train(scalewise: Run) -> None:
    line = ("train", "tests.tiny:float32", "--device-kind", "cpu", "--batch", 6, "--epochs", 4, "--json")
    document = document_of(scalewise(*line))
    assert set(document) == TRAIN | BESIDE
    fixed = {
        key: document[key] for key in ("workload", "strategy", "options", "devices", "device_kind", "hosts", "link")
    }
    assert fixed == {
        "workload": "tests.tiny:float32",
        "strategy": "single",
        "options": {},
        "devices": 1,
        "device_kind": "cpu",
        "hosts": 1,
        "link": None,
    }
    assert (document["batch"], document["batch_per_device"], document["precision"]) == (6, 6, "fp32")
    assert (document["steps"], document["epochs"], len(document["epoch_seconds"])) == (12, 4, 4)
    assert set(document["step_seconds"]) == {"median", "low", "high", "n"}
    assert document["step_seconds"]["n"] == 12 - 12 // 4
    assert document["bytes_per_step"] == {"planned": 0, "traced": 0, "busiest": 0, "traced_by": "kernel"}
    assert document["parameters"] == 6 * 5 + 5 + 5 * 3 + 3
    assert list(document["phases"]) == ["load", "forward", "loss", "backward", "update"]
    assert (document["execution"], document["load"], document["data"]) == ("eager", "device", "generated numbers")
    assert 0 <= document["accuracy"] <= 1
    assert document["loss"] > 0


def test_train_of_one_step_has_no_full_epoch(scalewise: Run) -> None:
    document = document_of(scalewise("train", "tests.tiny:float32", "--batch", 4, "--steps", 1, "--json"))
    assert (document["steps"], document["epochs"], document["epoch_seconds"]) == (1, 0, [])
    assert document["step_seconds"]["n"] == 1


def test_a_resumed_last_step_counts_no_seconds_but_is_json(scalewise: Run, folder: Path) -> None:
    line = ("train", "tests.tiny:float32", "--batch", 4, "--json", "--checkpoint", folder / "c", "--steps")
    document_of(scalewise(*line, 39))
    document = document_of(scalewise(*line, 40, "--resume"))
    assert document["steps"] == 1
    assert document["checkpoint"] == str(folder / "c")
    assert document["step_seconds"]["n"] == 1


def test_speech_says_where_it_comes_from(scalewise: Run, recordings: Path) -> None:
    line = ("train", "linear", "--batch", 3, "--steps", 2, "--json")
    assert document_of(scalewise(*line, "--data", recordings))["data"] == f"6 recordings in {recordings}"
    synthetic = document_of(scalewise(*line, "--samples", 6))
    assert synthetic["data"].startswith("synthetic speech")
    assert "scalewise data speech" in synthetic["notes"][0]


@pytest.mark.parametrize(("name", "parameters"), [("linear", 12_102_220), ("conv", 376_200)])
def test_describe(name: str, parameters: int, scalewise: Run) -> None:
    document = document_of(scalewise("describe", name, "--json"))
    assert set(document) == DESCRIBE | {"training_flops_per_sample"}
    assert (document["workload"], document["parameters"]) == (name, parameters)


def test_describe_with_the_roofline_of_a_gpu(scalewise: Run) -> None:
    line = ("describe", "linear", "--gpu", "h200", "--batch", 10, "--step-time", 0.001)
    roofline = document_of(scalewise(*line, "--json"))["roofline"]
    assert roofline["fraction_reached"] == roofline["seconds"] / 0.001
    assert 50e-6 < roofline["peak_seconds"] < roofline["seconds"] < roofline["unfused_seconds"] < 300e-6
    assert roofline["operators"][0]["phase"] == "update"
    text = " ".join(scalewise(*line).stdout.split())
    assert "on H200 SXM 141GB (batch 10, fp32)" in text
    assert f"reaches {roofline['fraction_reached']:.0%} of that speed" in text


def test_profile(scalewise: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalewise.probe.profile.SECONDS_PER_BATCH", 0.05)
    path = folder / "p.json"
    line = ("profile", "tests.tiny:float32", "--device-kind", "cpu", "--batch", "4,8", "--json", "--out", path)
    document = document_of(scalewise(*line))
    more = {"input_bytes", "precision", "data", "versions", "footprint", "measured_at", "least_seconds", "in_step"}
    assert set(document) == PROFILE | more | {
        "epoch_told", "source", "modules", "module_calls", "quality", "training_flops", "ran_batch",
    }  # fmt: skip
    assert document == json.loads(path.read_text())
    assert [step["batch"] for step in document["steps"]] == [4, 8]
    for step in document["steps"]:
        assert set(step) == {
            "batch", "forward", "backward", "update", "load", "ready", "step_seconds", "peak_memory_bytes",
            "uncertainty",
        }  # fmt: skip
        parts = step["load"] + step["forward"] + step["backward"] + step["update"]
        assert parts == pytest.approx(step["step_seconds"])
    assert set(document["layers"][0]) == {"name", "module", "parameter_bytes", "activation_bytes", "flops"}
    assert sum(layer["parameter_bytes"] for layer in document["layers"]) == document["parameter_bytes"] == 4 * 53
    assert (document["samples_per_epoch"], document["execution"]) == (16, "eager")
    assert list(folder.iterdir()) == [path]


def test_list_strategies(scalewise: Run) -> None:
    document = document_of(scalewise("list", "strategies", "--json"))
    assert list(document) == ["strategies"]
    assert [row["name"] for row in document["strategies"]] == list(STRATEGIES)
    assert document["strategies"][0] == {
        "name": "single",
        "summary": "one device; the baseline of all other strategies",
        "exact": True,
        "options": {},
        "choices": {},
    }


def test_list_workloads(scalewise: Run) -> None:
    document = document_of(scalewise("list", "workloads", "--json"))
    assert [row["name"] for row in document["workloads"]] == [*CATALOGUE, *PUBLISHED]
    unet = document["workloads"][2]
    assert unet["options"] == {"width": 8, "depth": 3, "norm": "none", "size": 64}


def test_doctor(scalewise: Run) -> None:
    document = document_of(scalewise("doctor", "--json"))
    assert list(document) == ["Software", "Devices", "Ways to run", "Data"]
    assert {key for checks in document.values() for check in checks for key in check} == {
        "name",
        "status",
        "found",
        "fix",
    }


def test_data(scalewise: Run, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving(ARCHIVE) as server:
        monkeypatch.setattr(download.fetch_speech, "__defaults__", (server.url, SHA256, None))
        document = document_of(scalewise("data", "speech", "--json"))
    assert document == {"data": "speech", "folder": str(cache / "speech"), "recordings": 2}
    assert scalewise("data", "speech").stdout == f"2 recordings in {cache / 'speech'}\n"


@pytest.mark.slow
def test_tune(scalewise: Run, cache: Path, folder: Path) -> None:
    line = ("tune", "tests.tiny:float32", "--device-kind", "cpu", "--batch", 4, "--time-limit", 0.01, "--out", folder)
    document = document_of(scalewise(*line, "--json"))
    assert set(document) == {
        "workload", "device", "device_kind", "batch", "precision", "data", "trials", "best", "offers",
        "roofline_seconds", "fraction_reached", "roofline", "batches", "command", "arguments", "code", "versions",
        "measured_at", "interrupted", "notes", "saved_in",
    }  # fmt: skip
    assert document["trials"][0] == document["best"]
    assert document["best"]["options"]["execution"] == "eager"
    assert {trial["skipped"] for trial in document["trials"][1:]} == {"the time limit was reached"}
    assert Path(document["saved_in"]).is_relative_to(cache)
    saved = document_of(scalewise(*line, "--json"))
    assert saved["trials"] == document["trials"]
    assert {file.name for file in folder.iterdir()} == {"tune.json", "tune.png", "tune.svg"}
