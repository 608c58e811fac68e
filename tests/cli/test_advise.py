"""`scalewise advise` from the command line: no torch where a profile or a figure is given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scalewise.published.stevens import stevens_profile
from scalewise.results.profile import Profile
from tests.command import ROOT, Run, command
from tests.verbs.test_auto import box as two_cores

STUDY = ("--cluster", "4x-gtx-1080-ti", "--batch", "100")


def words(text: str) -> str:
    """However the lines were broken."""
    return " ".join(text.split())


def test_the_document_has_what_the_contract_names(scalewise: Run) -> None:
    said = scalewise("advise", "linear", *STUDY, "--json")
    document = json.loads(said.stdout)
    assert said.code == 0
    assert set(document) == {"workload", "cluster", "profile", "rows", "verdict"}
    assert set(document["verdict"]) >= {"add_devices", "best", "bottleneck", "reason", "break_even"}
    assert set(document["verdict"]["break_even"]) == {"batch", "bandwidth_GBps"}
    for row in document["rows"]:
        assert set(row) >= {
            "strategy", "options", "devices", "hosts", "batch", "batch_per_device", "step_seconds", "epoch_seconds",
            "speedup", "efficiency", "bottleneck", "phases", "memory_bytes", "fits", "extrapolated", "cost_per_epoch",
        }  # fmt: skip
        assert row["step_seconds"]["low"] < row["step_seconds"]["predicted"] < row["step_seconds"]["high"]
    assert document["verdict"]["add_devices"] is False


def test_people_read_the_verdict_first_in_a_table_that_fits(scalewise: Run) -> None:
    said = scalewise("advise", "conv", *STUDY)
    assert said.stdout.startswith("Use mirrored on 4 x GTX 1080 Ti")
    assert max(map(len, said.stdout.splitlines())) <= 80


def test_a_profile_file_is_enough(scalewise: Run, tmp_path: Path) -> None:
    path = tmp_path / "conv.json"
    Profile(stevens_profile("conv")).write(path)
    said = scalewise("advise", "--profile", path, *STUDY, "--json")
    assert json.loads(said.stdout)["workload"] == "conv"


def test_so_is_a_published_figure_of_a_published_model(scalewise: Run) -> None:
    said = scalewise("advise", "ResNet-50", "--step-time", "0.1@64", "--cluster", "8x-a100-nvlink", "--json")
    document = json.loads(said.stdout)
    assert document["rows"][0]["step_seconds"]["predicted"] == pytest.approx(0.1)
    assert document["verdict"]["best"]["devices"] == 8


def test_an_epoch_that_nobody_told_is_not_made_up(scalewise: Run) -> None:
    asked = ("advise", "ResNet-50", "--step-time", "0.1@64", "--cluster", "8x-a100-nvlink")
    document = json.loads(scalewise(*asked, "--json").stdout)
    assert document["profile"]["samples_per_epoch"] is None
    assert {row["epoch_seconds"] for row in document["rows"]} == {None}
    assert "epoch" not in document["verdict"]["reason"]
    told = json.loads(scalewise(*asked, "--samples", 6400, "--json").stdout)
    assert told["rows"][0]["epoch_seconds"] == pytest.approx(10.0)
    assert "an epoch takes" in told["verdict"]["reason"]


def test_nor_is_it_in_a_profile_that_is_kept_of_a_figure(scalewise: Run, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    figure = ("advise", "ResNet-50", "--step-time", "0.062@32", "--save-profile", path)
    scalewise(*figure, "--cluster", "8x-v100-nvlink")
    document = json.loads(scalewise("advise", "--profile", path, "--cluster", "8x-v100-nvlink", "--json").stdout)
    assert document["profile"]["samples_per_epoch"] is None
    assert document["rows"][0]["epoch_seconds"] is None
    assert "launching is estimated" in document["profile"]["source"]


def test_a_figure_of_a_model_that_can_be_built_tells_which_layers_tensor_cuts(scalewise: Run) -> None:
    for model in ("linear", "transformer"):
        figure = ("advise", model, "--step-time", "0.05@20", "--cluster", "8x-a100-nvlink", "--strategy", "tensor")
        document = json.loads(scalewise(*figure, "--json").stdout)
        assert [row["devices"] for row in document["rows"] if row["strategy"] == "tensor"] == [2, 4, 8]


def test_counts_that_a_strategy_cannot_have_are_left_out_unless_they_were_asked_for(scalewise: Run) -> None:
    asked = ("advise", "transformer", "--step-time", "0.062@32", "--cluster", "8x-a100-nvlink", "--batch", "512")
    document = json.loads(scalewise(*asked, "--strategy", "hybrid:stages=4", "--json").stdout)
    assert [row["devices"] for row in document["rows"]] == [1, 4, 8]
    said = scalewise(*asked, "--strategy", "hybrid:stages=4", "--devices", "2,4")
    assert said.code == 2
    assert "--devices must be a multiple of 4, not 2" in words(said.stderr)
    assert scalewise(*asked, "--strategy", "hybrid:stages=16").code == 2


def test_what_is_paid_for_is_said(scalewise: Run) -> None:
    """g4dn.12xlarge: four T4, paid for whole."""
    asked = ("advise", "ResNet-50", "--step-time", "0.4@64", "--cluster", "4x-t4")
    without, told = (words(scalewise(*asked, *more).stdout) for more in ((), ("--samples", 1_281_167)))
    assert "cost: of 1,000 steps; hosts are paid for whole" in without
    assert "cost: of an epoch; hosts are paid for whole" in told
    assert "cost" not in scalewise(*asked, "--batch-per-device", 64).stdout  # steps of different batches


def test_the_batch_of_each_device_makes_one_table_beside_one_device_with_as_many(scalewise: Run) -> None:
    asked = ("advise", "conv", "--cluster", "4x-gtx-1080-ti", "--batch-per-device", 50)
    document = json.loads(scalewise(*asked, "--json").stdout)
    mirrored = [row for row in document["rows"] if row["strategy"] in ("single", "mirrored")]
    assert [(row["devices"], row["batch"]) for row in mirrored] == [(1, 50), (2, 100), (4, 200)]
    assert {row["batch_per_device"] for row in document["rows"]} == {50}
    best, alone = document["verdict"]["best"], document["rows"][0]
    rates = [row["batch"] / row["step_seconds"]["predicted"] for row in (best, alone)]
    assert best["speedup_per_device_batch"] == pytest.approx(rates[0] / rates[1])
    said = scalewise(*asked).stdout
    assert said.count("conv on 4x-gtx-1080-ti, ") == 1
    assert f"it trains {rates[0]:,.0f} samples/s where one device trains {rates[1]:,.0f} samples/s" in words(said)


def test_what_is_asked_twice_is_answered_once(scalewise: Run) -> None:
    asked = ("advise", "linear", "--cluster", "4x-gtx-1080-ti", "--strategy", "mirrored")
    once = json.loads(scalewise(*asked, "--batch", "100,50", "--devices", "2,4", "--json").stdout)
    more = ("--strategy", "mirrored", "--batch", "100,100,50", "--devices", "2,4,2")
    assert json.loads(scalewise(*asked, *more, "--json").stdout) == once


def test_what_the_readme_quotes_is_what_is_printed(scalewise: Run) -> None:
    block = (ROOT / "README.md").read_text().partition("$ scalewise advise ")[2].partition("```")[0]
    command_line, _, quoted = block.partition("\n")
    said = scalewise("advise", *command_line.split())
    sentence = words(quoted).removesuffix(" ...")
    assert len(sentence) > 100
    assert words(said.stdout).startswith(sentence)


def test_strategies_without_a_row_are_named(scalewise: Run) -> None:
    said = words(scalewise("advise", "linear", *STUDY).stdout)
    assert "Left out: " in said
    assert "tensor, hybrid (which layers can be cut is not known here)" in said


def test_updates_that_were_not_measured_are_told_where_they_count(scalewise: Run) -> None:
    assumed = "the update is made in host memory, which is assumed, not measured: Adam at 10 GB/s"
    said = words(scalewise("advise", "linear", *STUDY, "--strategy", "parameter-server").stdout)
    assert f"parameter-server: {assumed}" in said
    assert assumed not in words(scalewise("advise", "linear", *STUDY, "--strategy", "mirrored").stdout)


@pytest.mark.parametrize("samples", [6400, 10**9])
def test_names_and_costs_are_whole_in_80_columns(scalewise: Run, samples: int) -> None:
    said = scalewise(
        "advise", "ResNet-50", "--step-time", "0.4@64", "--cluster", "4x-t4", "--samples", samples
    ).stdout.splitlines()
    title = next(at for at, line in enumerate(said) if line.startswith("ResNet-50 on 4x-t4"))
    table = said[title + 1 : said.index("", title)]
    assert max(map(len, said)) <= 80
    assert table[0].endswith("cost")
    names = {line[:16].strip() for line in table[1:]}
    assert names >= {"mirrored", "parameter-server", "-async", "data-parallel", ":engine=threads"}
    assert all("$" in line for line in table[1:] if line[16:].strip())


def test_the_best_rows_step_opens_in_perfetto(scalewise: Run, tmp_path: Path) -> None:
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
        (["linear", *STUDY, "--devices", "8"], ["4x-gtx-1080-ti has 1 to 4 devices, not 8"]),
        (
            ["linear", "--cluster", "4 x gtx-1080-ti, 1000000000 hosts, 1gbe"],
            ["has 4,000,000,000 devices; up to 1,000,000 are simulated"],
        ),
        (["linear", *STUDY, "--strategy", "mirored"], ["unknown strategy 'mirored'"]),
        (
            ["linear", "--cluster", "4x-gtx-1080-ti", "--batch-per-device", "0"],
            ["--batch-per-device is 0; it must be 1 or more"],
        ),
        (["ResNet-50"], ["ResNet-50 is known in outline only and cannot be timed here; give one measured step"]),
        (["ResNet-50", "--cluster", "4x-t4"], ["as in --step-time 0.062@32"]),
        (["linear", *STUDY, "--step-time", "fast"], ["--step-time is 'fast'; write SECONDS@BATCH, as in 0.062@32"]),
        (["linear", *STUDY, "--step-time", "0@32"], ["--step-time is '0@32'"]),
        (["linear", *STUDY, "--step-time", "1e400@32"], ["--step-time is '1e400@32'"]),
        (["linear", *STUDY, "--step-time", "1.2.3@32"], ["--step-time is '1.2.3@32'"]),
        (["linear", *STUDY, "--batch-per-device", "3"], ["give --batch or --batch-per-device, not both"]),
        (["--profile", "none.json", *STUDY], ["cannot read the profile none.json"]),
        (
            ["linear", *STUDY, "--load", "stream:workers=4", "--precision", "bf16"],
            ["--precision and --load would tell how to time one device, but linear on GTX 1080 Ti is known from the"],
        ),
        (
            ["ResNet-50", "--cluster", "4x-t4", "--step-time", "0.1@32", "--load", "files"],
            ["--load would tell how to time one device, but a step time is given; leave it out"],
        ),
    ],
)
def test_bad_input_is_one_sentence(scalewise: Run, arguments: list[str], parts: list[str]) -> None:
    scalewise("advise", *arguments).refused(2, *parts)


def test_a_profile_answers_for_its_own_workload_as_it_was_timed(scalewise: Run, tmp_path: Path) -> None:
    path = tmp_path / "conv.json"
    Profile(stevens_profile("conv")).write(path)
    assert scalewise("advise", "conv", "--profile", path, *STUDY).code == 0
    scalewise("advise", "linear", "--profile", path, *STUDY).refused(2, "the profile is of conv, not of linear")
    said = scalewise("advise", "--profile", path, *STUDY, "--precision", "bf16")
    said.refused(2, "--precision would tell how to time one device, but a profile is given")


def test_a_profile_whose_steps_take_no_time_is_none(scalewise: Run, tmp_path: Path) -> None:
    conv, path = stevens_profile("conv"), tmp_path / "conv.json"
    nothing = {"load": 0.0, "forward": 0.0, "backward": 0.0, "update": 0.0}
    first = conv.steps[0].model_copy(update=nothing)
    Profile(conv.model_copy(update={"steps": (first, *conv.steps[1:])})).write(path)
    said = scalewise("advise", "--profile", path, *STUDY)
    said.refused(2, "the profile of conv has a step of 0 seconds, at batch 10")


def test_seconds_of_one_device_are_not_put_beside_the_links_of_another(scalewise: Run, tmp_path: Path) -> None:
    path = tmp_path / "conv.json"
    Profile(stevens_profile("conv")).write(path)
    said = scalewise("advise", "--profile", path, "--cluster", "8x-a100-nvlink")
    said.refused(2, "the profile is of conv on GTX 1080 Ti, but 8x-a100-nvlink has A100-SXM4-80GB", "--step-time")


def test_without_a_cluster_it_profiles_and_answers_for_this_machine(
    scalewise: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("scalewise.verbs.profiler.SECONDS_PER_BATCH", 0.02)
    monkeypatch.setattr("scalewise.verbs.here.cluster_here", lambda _: (two_cores(1e-5, 1e5), "links of a test"))
    asked = ("advise", "tests.tiny:float32", "--batch", 8, "--save-profile", tmp_path / "tiny.json", "--json")
    first, again = (json.loads(scalewise(*asked).stdout) for _ in range(2))
    assert (first["cluster"], first["workload"]) == ("here-2x-cpu", "tests.tiny:float32")
    assert first["profile"]["source"] == "a profile of the device here, links of a test"
    assert set(first["profile"]["batches"]) == {1, 4, 8}
    assert {row["devices"] for row in first["rows"]} == {1, 2}
    assert first["verdict"]["add_devices"] is False
    assert "kept since" in again["profile"]["source"]
    assert again["rows"] == first["rows"]
    saved = Profile.read(tmp_path / "tiny.json").document
    assert [step.batch for step in saved.steps] == [1, 4, 8]
    assert len(saved.steps[0].ready) == 4


@pytest.mark.parametrize("line", ["advise linear --cluster 4x-gtx-1080-ti", "validate stevens", "list clusters"])
def test_no_torch_is_imported(line: str) -> None:
    imported = [sys.executable, "-X", "importtime", *command(*line.split())[1:]]
    said = subprocess.run(imported, capture_output=True, text=True, check=False)
    modules = {row.rpartition("|")[2].strip() for row in said.stderr.splitlines() if row.startswith("import time:")}
    assert said.returncode == 0
    assert "scalewise.clusters.catalogue" in modules
    assert not modules & {"torch", "numpy", "matplotlib", "psutil"}


def test_a_model_that_does_not_fit_its_options_is_refused_before_links_are_measured(
    scalewise: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said = scalewise("advise", ROOT / "examples/resnet50.py:resnet50", "--input", "3x64x64", "--classes", 10)
    said.refused(2, "gives 1000 numbers per sample; --classes 10 needs 10")
    assert not (tmp_path / "scalewise" / "clusters").exists()


def test_one_figure_says_what_it_estimates(scalewise: Run) -> None:
    asked = ("--step-time", "0.062@32", "--cluster", "8x-v100-nvlink", "--batch", 4, "--devices", "1,2")
    image, text = (words(scalewise("advise", model, *asked).stdout) for model in ("ResNet-50", "BERT base"))
    assert "launching is estimated to take 28 ms of a step, however few its samples" in image
    assert "memory is that of weights and what layers keep of a sample of 3x224x224" in image
    assert "memory is that of weights and no activations, which are not counted" in text
    assert "at batch 4, resnet-50 on 8x-v100-nvlink is bound by launching work" in image.lower()
