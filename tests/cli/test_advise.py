"""`scalewise advise` from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scalewise.formats.profile import Profile
from scalewise.published.stevens import stevens_profile
from tests.advice.test_advise import box as two_cores
from tests.command import ROOT, Run, command

STUDY = ("--cluster", "4x-gtx-1080-ti", "--batch", "100")


def words(text: str) -> str:
    """Return the text on one line."""
    return " ".join(text.split())


def test_the_document_has_the_documented_keys(scalewise: Run) -> None:
    output = scalewise("advise", "linear", *STUDY, "--json")
    document = json.loads(output.stdout)
    assert output.code == 0
    assert set(document) == {"workload", "cluster", "profile", "rows", "verdict", "baseline"}
    assert set(document["verdict"]) >= {"add_devices", "best", "bottleneck", "reason", "break_even"}
    assert set(document["verdict"]["break_even"]) == {"batch", "bandwidth_GBps"}
    for row in document["rows"]:
        assert set(row) >= {
            "strategy", "options", "devices", "hosts", "batch", "batch_per_device", "step_seconds", "epoch_seconds",
            "speedup", "efficiency", "bottleneck", "phases", "memory_bytes", "fits", "extrapolated", "cost_per_epoch",
        }  # fmt: skip
        assert row["step_seconds"]["low"] < row["step_seconds"]["predicted"] < row["step_seconds"]["high"]
    assert document["verdict"]["add_devices"] is False


def test_several_clusters_are_compared(scalewise: Run) -> None:
    boxes = ("4x-gtx-1080-ti", "1 x gtx-1080-ti", "2 x gtx-1080-ti")
    clusters = [text for box in boxes for text in ("--cluster", box)]
    output = scalewise("advise", "conv", *clusters, "--batch", "100", "--epochs", "20", "--json")
    document = json.loads(output.stdout)
    assert document["cluster"] == "4x-gtx-1080-ti"
    assert {row["devices"] for row in document["rows"]} == {1, 2, 4}
    assert {entry["cluster"] for entry in document["comparison"]} == set(boxes)
    for entry in document["comparison"]:
        assert set(entry) >= {"cluster", "best", "seconds_to_finish", "cost", "price_source", "quality"}
        assert entry["quality"] == "measured"
        assert (entry["cost"], entry["price_source"]) == (None, None)  # nobody rents out GTX 1080 Ti
    assert document["verdict"]["recommended"] == "4x-gtx-1080-ti"


def test_the_verdict_comes_first_and_lines_fit_80_columns(scalewise: Run) -> None:
    output = scalewise("advise", "conv", *STUDY)
    assert output.stdout.startswith("Use mirrored on 4 x GTX 1080 Ti")
    assert max(map(len, output.stdout.splitlines())) <= 80


def test_a_profile_file_is_enough(scalewise: Run, tmp_path: Path) -> None:
    path = tmp_path / "conv.json"
    Profile(stevens_profile("conv")).write(path)
    output = scalewise("advise", "--profile", path, *STUDY, "--json")
    assert json.loads(output.stdout)["workload"] == "conv"


def test_a_step_time_of_a_published_model_is_enough(scalewise: Run) -> None:
    output = scalewise("advise", "ResNet-50", "--step-time", "0.1@64", "--cluster", "8x-a100-nvlink", "--json")
    document = json.loads(output.stdout)
    assert document["rows"][0]["step_seconds"]["predicted"] == pytest.approx(0.1)
    assert document["verdict"]["best"]["devices"] == 8


def test_an_unknown_epoch_is_null(scalewise: Run) -> None:
    arguments = ("advise", "ResNet-50", "--step-time", "0.1@64", "--cluster", "8x-a100-nvlink")
    document = json.loads(scalewise(*arguments, "--json").stdout)
    assert document["profile"]["samples_per_epoch"] is None
    assert {row["epoch_seconds"] for row in document["rows"]} == {None}
    assert "epoch" not in document["verdict"]["reason"]
    known = json.loads(scalewise(*arguments, "--samples", 6400, "--json").stdout)
    assert known["rows"][0]["epoch_seconds"] == pytest.approx(10.0)
    assert "an epoch takes" in known["verdict"]["reason"]


def test_a_profile_saved_from_a_step_time_has_no_epoch(scalewise: Run, tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    figure = ("advise", "ResNet-50", "--step-time", "0.062@32", "--save-profile", path)
    scalewise(*figure, "--cluster", "8x-v100-nvlink")
    document = json.loads(scalewise("advise", "--profile", path, "--cluster", "8x-v100-nvlink", "--json").stdout)
    assert document["profile"]["samples_per_epoch"] is None
    assert document["rows"][0]["epoch_seconds"] is None
    assert "kernel launches: an estimated" in document["profile"]["source"]


@pytest.mark.slow
def test_tensor_is_predicted_from_a_step_time_if_the_model_can_be_built(scalewise: Run) -> None:
    for model in ("linear", "transformer"):
        figure = ("advise", model, "--step-time", "0.05@20", "--cluster", "8x-a100-nvlink", "--strategy", "tensor")
        document = json.loads(scalewise(*figure, "--json").stdout)
        assert [row["devices"] for row in document["rows"] if row["strategy"] == "tensor"] == [2, 4, 8]


def test_impossible_numbers_of_devices_are_omitted_unless_given(scalewise: Run) -> None:
    arguments = ("advise", "transformer", "--step-time", "0.062@32", "--cluster", "8x-a100-nvlink", "--batch", "512")
    document = json.loads(scalewise(*arguments, "--strategy", "hybrid:stages=4", "--json").stdout)
    assert [row["devices"] for row in document["rows"]] == [1, 4, 8]
    output = scalewise(*arguments, "--strategy", "hybrid:stages=4", "--devices", "2,4")
    assert output.code == 2
    assert "--devices must be a multiple of 4, not 2" in words(output.stderr)
    assert scalewise(*arguments, "--strategy", "hybrid:stages=16").code == 2


def test_costs_are_per_epoch_or_per_1000_steps(scalewise: Run) -> None:
    """4x-t4 is a g4dn.12xlarge, which has a price per hour."""
    arguments = ("advise", "ResNet-50", "--step-time", "0.4@64", "--cluster", "4x-t4")
    without, with_epoch = (words(scalewise(*arguments, *more).stdout) for more in ((), ("--samples", 1_281_167)))
    assert "cost/" in without
    assert "cost/1k" in without
    assert "Costs are for whole hosts" in with_epoch
    assert "cost/1k" not in with_epoch
    assert "cost" not in scalewise(*arguments, "--batch-per-device", 64).stdout  # steps of different batches


def test_a_batch_per_device_makes_one_table(scalewise: Run) -> None:
    arguments = ("advise", "conv", "--cluster", "4x-gtx-1080-ti", "--batch-per-device", 50)
    document = json.loads(scalewise(*arguments, "--json").stdout)
    mirrored = [row for row in document["rows"] if row["strategy"] in ("single", "mirrored")]
    assert [(row["devices"], row["batch"]) for row in mirrored] == [(1, 50), (2, 100), (4, 200)]
    assert {row["batch_per_device"] for row in document["rows"]} == {50}
    best, alone = document["verdict"]["best"], document["rows"][0]
    rates = [row["batch"] / row["step_seconds"]["predicted"] for row in (best, alone)]
    assert best["speedup_per_device_batch"] == pytest.approx(rates[0] / rates[1])
    output = scalewise(*arguments).stdout
    assert output.count("conv on 4x-gtx-1080-ti, ") == 1
    assert f"it trains {rates[0]:,.0f} samples/s instead of {rates[1]:,.0f} samples/s on one device" in words(output)


def test_duplicate_arguments_are_ignored(scalewise: Run) -> None:
    arguments = ("advise", "linear", "--cluster", "4x-gtx-1080-ti", "--strategy", "mirrored")
    once = json.loads(scalewise(*arguments, "--batch", "100,50", "--devices", "2,4", "--json").stdout)
    more = ("--strategy", "mirrored", "--batch", "100,100,50", "--devices", "2,4,2")
    assert json.loads(scalewise(*arguments, *more, "--json").stdout) == once


def test_the_readme_quotes_the_output(scalewise: Run) -> None:
    block = (ROOT / "README.md").read_text().partition("$ scalewise advise ")[2].partition("```")[0]
    command_line, _, quoted = block.partition("\n")
    output = scalewise("advise", *command_line.split())
    sentence = words(quoted).removesuffix(" ...")
    assert len(sentence) > 100
    assert words(output.stdout).startswith(sentence)


def test_omitted_strategies_are_named(scalewise: Run) -> None:
    output = words(scalewise("advise", "linear", *STUDY).stdout)
    assert "Omitted: tensor, hybrid (the profile does not say which layers can be split between devices)" in output


def test_the_assumed_host_update_is_noted_where_it_counts(scalewise: Run) -> None:
    assumed = "Adam updates in host memory are assumed to run at 10 GB/s (not measured)"
    output = words(scalewise("advise", "linear", *STUDY, "--strategy", "parameter-server").stdout)
    assert f"parameter-server: {assumed}" in output
    assert assumed not in words(scalewise("advise", "linear", *STUDY, "--strategy", "mirrored").stdout)


@pytest.mark.parametrize("samples", [6400, 10**9])
def test_names_and_costs_are_complete_in_80_columns(scalewise: Run, samples: int) -> None:
    output = scalewise(
        "advise", "ResNet-50", "--step-time", "0.4@64", "--cluster", "4x-t4", "--samples", samples
    ).stdout.splitlines()
    title = next(at for at, line in enumerate(output) if line.startswith("ResNet-50 on 4x-t4"))
    table = output[title + 1 : output.index("", title)]
    assert max(map(len, output)) <= 80
    assert table[0].split()[-1] == "bottle-"
    assert "cost/" in table[0]
    names = {line[:13].strip() for line in table[2:]}
    assert names >= {"mirrored", "parameter-", "server", "server-async", "data-parallel", ":engine=", "threads"}
    assert all("$" in line for line in table[2:] if line[13:].strip())


def test_the_trace_contains_the_phases_of_the_best_row(scalewise: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    scalewise("advise", "conv", *STUDY, "--trace", path)
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["name"] for event in events} >= {"forward", "backward", "reduce"}


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--cluster", "4x-gtx-1080-ti"], ["name a WORKLOAD, or give --profile FILE"]),
        (["linaer", "--cluster", "4x-t4"], ["unknown workload 'linaer' (did you mean 'linear'?)", "ResNet-50"]),
        (["linear", "--cluster", "4x-gtx"], ["unknown cluster '4x-gtx'", "4x-gtx-1080-ti"]),
        (["linear", *STUDY, "--devices", "8"], ["--devices is 8, but 4x-gtx-1080-ti has 4 devices"]),
        (
            ["linear", "--cluster", "4 x gtx-1080-ti, 1000000000 hosts, 1gbe"],
            ["has 4,000,000,000 devices; at most 1,000,000 can be simulated"],
        ),
        (["linear", *STUDY, "--strategy", "mirored"], ["unknown strategy 'mirored'"]),
        (
            ["linear", "--cluster", "4x-gtx-1080-ti", "--batch-per-device", "0"],
            ["--batch-per-device is 0; it must be 1 or more"],
        ),
        (["DeepSpeech2"], ["DeepSpeech2 is a published outline without code, so it cannot be timed"]),
        (["DeepSpeech2", "--cluster", "4x-t4"], ["as in --step-time 0.062@32"]),
        (["vgg61", "--cluster", "4x-t4"], ["(did you mean 'vgg"]),
        (["yolov3", "--cluster", "4x-t4"], ["YOLOv3 is a published outline without code"]),
        (["linear", *STUDY, "--step-time", "fast"], ["--step-time is 'fast'; write SECONDS@BATCH, as in 0.062@32"]),
        (["linear", *STUDY, "--step-time", "0@32"], ["--step-time is '0@32'"]),
        (["linear", *STUDY, "--step-time", "1e400@32"], ["--step-time is '1e400@32'"]),
        (["linear", *STUDY, "--step-time", "1.2.3@32"], ["--step-time is '1.2.3@32'"]),
        (
            ["linear", *STUDY, "--batch-per-device", "3"],
            ["both --batch and --batch-per-device are given; give one of them"],
        ),
        (["--profile", "none.json", *STUDY], ["cannot read the profile none.json"]),
        (
            ["linear", *STUDY, "--load", "stream:workers=4", "--precision", "bf16"],
            ["--precision and --load have no effect, because linear on GTX 1080 Ti is predicted from the study's"],
        ),
        (
            ["ResNet-50", "--cluster", "4x-t4", "--step-time", "0.1@32", "--load", "files"],
            ["--load has no effect, because a step time is given; leave it out"],
        ),
    ],
)
def test_bad_input_is_one_sentence(scalewise: Run, arguments: list[str], parts: list[str]) -> None:
    scalewise("advise", *arguments).refused(2, *parts)


def test_a_profile_is_refused_for_another_workload_or_other_options(scalewise: Run, tmp_path: Path) -> None:
    path = tmp_path / "conv.json"
    Profile(stevens_profile("conv")).write(path)
    assert scalewise("advise", "conv", "--profile", path, *STUDY).code == 0
    scalewise("advise", "linear", "--profile", path, *STUDY).refused(2, "the profile is of conv, not of linear")
    output = scalewise("advise", "--profile", path, *STUDY, "--precision", "bf16")
    output.refused(2, "--precision has no effect, because a profile is given")


def test_a_profile_with_a_step_of_zero_seconds_is_refused(scalewise: Run, tmp_path: Path) -> None:
    conv, path = stevens_profile("conv"), tmp_path / "conv.json"
    nothing = {"load": 0.0, "forward": 0.0, "backward": 0.0, "update": 0.0}
    first = conv.steps[0].model_copy(update=nothing)
    Profile(conv.model_copy(update={"steps": (first, *conv.steps[1:])})).write(path)
    output = scalewise("advise", "--profile", path, *STUDY)
    output.refused(2, "conv.json is not a profile", "the phases sum to 0 seconds")


def test_a_profile_of_another_gpu_is_scaled(scalewise: Run, tmp_path: Path) -> None:
    path = tmp_path / "conv.json"
    measured = stevens_profile("conv")
    Profile(measured).write(path)
    arguments = ("--cluster", "8x-a100-nvlink", "--strategy", "mirrored", "--batch", 100, "--json")
    document = json.loads(scalewise("advise", "--profile", path, *arguments).stdout)
    assert "scaled operator by operator" in document["profile"]["source"]
    alone = document["rows"][0]
    assert alone["known"] == "scaled"
    [before] = [step for step in measured.steps if step.batch == 100]
    step = alone["step_seconds"]
    assert 0.2 * before.seconds < step["predicted"] < before.seconds  # an A100 is faster than a GTX 1080 Ti
    assert step["low"] < 0.8 * step["predicted"] < 1.2 * step["predicted"] < step["high"]


def test_a_profile_of_an_unknown_device_is_refused(scalewise: Run, tmp_path: Path) -> None:
    path = tmp_path / "conv.json"
    Profile(stevens_profile("conv").model_copy(update={"device": "X 1000"})).write(path)
    output = scalewise("advise", "--profile", path, "--cluster", "8x-a100-nvlink")
    output.refused(
        2,
        "the profile of conv was measured on X 1000, but the devices of 8x-a100-nvlink are A100-SXM4-80GB",
        "--step-time",
    )


def test_without_a_cluster_this_machine_is_profiled(
    scalewise: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("scalewise.probe.profile.SECONDS_PER_BATCH", 0.02)
    monkeypatch.setattr(
        "scalewise.probe.measure_links.cluster_here", lambda _: (two_cores(1e-5, 1e5), "links of a test")
    )
    arguments = ("advise", "tests.tiny:float32", "--batch", 8, "--save-profile", tmp_path / "tiny.json", "--json")
    first, again = (json.loads(scalewise(*arguments).stdout) for _ in range(2))
    assert (first["cluster"], first["workload"]) == ("here-2x-cpu", "tests.tiny:float32")
    assert first["profile"]["source"] == "a profile of this machine's device; links of a test"
    assert set(first["profile"]["batches"]) == {1, 4, 8}
    assert {row["devices"] for row in first["rows"]} == {1, 2}
    assert first["verdict"]["add_devices"] is False
    assert "cached since" in again["profile"]["source"]
    assert again["rows"] == first["rows"]
    saved = Profile.read(tmp_path / "tiny.json").document
    assert [step.batch for step in saved.steps] == [1, 4, 8]
    assert len(saved.steps[0].ready) == 4


@pytest.mark.parametrize("line", ["advise linear --cluster 4x-gtx-1080-ti", "validate stevens", "list clusters"])
def test_no_torch_is_imported(line: str) -> None:
    imported = [sys.executable, "-X", "importtime", *command(*line.split())[1:]]
    output = subprocess.run(imported, capture_output=True, text=True, check=False)
    modules = {row.rpartition("|")[2].strip() for row in output.stderr.splitlines() if row.startswith("import time:")}
    assert output.returncode == 0
    assert "scalewise.hardware.catalogue" in modules
    assert not modules & {"torch", "numpy", "matplotlib", "psutil"}


def test_a_model_that_does_not_fit_its_options_is_refused_before_links_are_measured(
    scalewise: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "five.py"
    file.write_text("from torch import nn\n\ndef five():\n    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5))\n")
    output = scalewise("advise", f"{file}:five", "--input", "3x2x2", "--classes", 10)
    output.refused(2, "returns 5 values per sample, but --classes 10 needs 10")
    assert not (tmp_path / "scalewise" / "clusters").exists()


def test_a_step_time_names_its_assumptions(scalewise: Run) -> None:
    arguments = ("--step-time", "0.062@32", "--cluster", "8x-v100-nvlink", "--batch", 4, "--devices", "1,2")
    image, text = (words(scalewise("advise", model, *arguments).stdout) for model in ("ResNet-50", "BERT base"))
    assert "kernel launches: an estimated 28 ms per step at any batch" in image
    assert "memory: weights and the activations of samples of 3x224x224" in image
    assert "memory: weights only, activations are unknown" in text
    assert "limited by kernel launches" in image
