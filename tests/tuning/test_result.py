"""Result of a tune: choice, offers, text, saved file, and lines for scripts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from scalewise.core.statistics import Interval
from scalewise.core.training_options import ExecutionOptions, Precision
from scalewise.formats.tuned import (
    TunedKey,
    plain_options,
    read_document,
    result_file,
    save_document,
    tuned_options,
)
from scalewise.predict.roofline import DeviceLimits, OperatorCost, Roofline
from scalewise.tuning.code_lines import code_lines
from scalewise.tuning.result import BatchSearch, BatchTrial, Deviation, Trial, TuneResult, payback
from scalewise.tuning.trial_chart import write_files
from scalewise.tuning.trials import is_rounding

EAGER = plain_options()
FFT = replace(EAGER, convolutions="fft")
COMPILED = replace(FFT, execution="compile")
REDUCED = replace(COMPILED, compile_mode="reduce-overhead")


def trial(options: ExecutionOptions, speedup: float, gradients: float = 1e-7, **more: object) -> Trial:
    seconds = 0.1 / speedup
    times = Interval(seconds, 0.9 * seconds, 1.1 * seconds, 20)
    deviation = Deviation(1e-8, gradients, 1e-7)
    return Trial(options, times, 20 / seconds, speedup, 2**20, deviation, **more)  # type: ignore[arg-type]


def result(batch: int = 20, precision: Precision = "fp32", **more: object) -> TuneResult:
    base = plain_options(precision)
    operator = OperatorCost("conv 200", "forward", 1, 1e9, 1e6, 0.01, "compute")
    limits = DeviceLimits("one core", "measured", {"fp32": 0.1, "bf16": 0.1}, 10.0)
    fields: dict[str, object] = {
        "workload": "model.py:net",
        "device": "one core",
        "device_kind": "cpu",
        "batch": batch,
        "precision": precision,
        "data": "generated inputs",
        "trials": (
            trial(base, 1.0),
            trial(replace(base, convolutions="fft"), 2.5),
            Trial(replace(base, execution="compile"), skipped="this machine has no g++"),
            trial(replace(base, precision="bf16"), 4.0, 1e-2, exact=False),
        ),
        "best_options": replace(base, convolutions="fft"),
        "roofline": Roofline(limits, batch, precision, (operator,), 0.02),
        "batches": BatchSearch(
            FFT,
            (
                BatchTrial(10, 0.1, 2**20),
                BatchTrial(20, 0.11, 2**21),
                BatchTrial(40, 0.22),
                BatchTrial(80, skipped="oom"),
            ),
            2**30,
            "batch 80: oom",
        ),
        "versions": {"torch": "2.13"},
        "measured_at": "2026-11-19T20:00:00+00:00",
        "arguments": ("--input", "3x8x8"),
        **more,
    }
    return TuneResult(**fields)  # type: ignore[arg-type]


def test_the_best_preserves_the_mathematics_and_lower_precision_is_an_offer() -> None:
    tuned = result()
    assert (tuned.best.options, tuned.best.speedup) == (FFT, 2.5)
    assert [offer.options.precision for offer in tuned.offers] == ["bf16"]
    assert tuned.command == (
        "scalewise train model.py:net --input 3x8x8 --batch 20 --execution eager --convolutions fft"
    )


def test_the_document_has_the_keys_of_the_contract() -> None:
    document = json.loads(json.dumps(result().to_dict()))
    assert {"workload", "device", "trials", "best", "roofline_seconds"} <= set(document)
    first, fft, compiled, half = document["trials"]
    assert first["options"]["execution"] == "eager"
    assert set(first["step_seconds"]) >= {"median", "low", "high"}
    keys = {
        "options",
        "step_seconds",
        "peak_memory_bytes",
        "deviation",
        "compile_seconds",
        "same_mathematics",
        "skipped",
    }
    assert keys <= set(fft)
    assert (compiled["skipped"], compiled["step_seconds"]) == ("this machine has no g++", None)
    assert [one["same_mathematics"] for one in (fft, half)] == [True, False]
    assert document["roofline_seconds"] == 0.01
    assert document["fraction_reached"] == pytest.approx(0.01 / 0.04)


def test_the_text_names_skipped_trials_the_offer_and_the_fraction_of_the_roofline() -> None:
    text = str(result())
    assert "Skipped: compile: this machine has no g++" in text
    assert "2.50x as fast as plain eager training, equal up to rounding" in text
    assert "--precision bf16" in text
    assert "reaches 25% of that speed" in text
    assert "conv 200" in text


def test_a_deviation_beyond_rounding_is_named() -> None:
    wrong = trial(COMPILED, 5.0, 1e-2, exact=False)
    tuned = result()
    text = str(replace(tuned, trials=(*tuned.trials, wrong)))
    assert "Not selected: compile, fft convolutions deviates by 1.0e-02" in text
    assert not wrong.same_mathematics


def test_a_saved_result_is_restored(tmp_path: Path) -> None:
    tuned = result()
    file = tmp_path / "result.json"
    assert save_document(file, tuned.to_saved())
    document = read_document(file)
    assert document is not None
    restored = TuneResult.from_saved(document, "")
    assert restored == tuned
    assert str(restored) == str(tuned)


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 0, "result": {}}', '{"schema": 1', '{"schema": 1}'])
def test_a_damaged_or_older_file_is_ignored(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = result_file(TunedKey("conv", "one core"), 20, "fp32")
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert tuned_options(TunedKey("conv", "one core"), 20, "fp32") is None


def test_results_are_found_by_workload_device_source_precision_and_nearest_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = tmp_path / "model.py"
    model.write_text("width = 8\n")
    key = TunedKey(f"{model}:net", "one core")
    for batch in (8, 64):
        assert save_document(result_file(key, batch, "fp32"), result(batch).to_saved())
    near = [tuned_options(key, batch, "fp32") for batch in (8, 10, 40)]
    assert [tuned and tuned.batch for tuned in near] == [8, 8, 64]
    exact = tuned_options(key, 8, "fp32")
    assert exact is not None
    assert (exact.options, exact.speedup, exact.text) == (FFT, 2.5, "2.5x (fft convolutions; same mathematics)")
    assert tuned_options(key, 8, "bf16") is None
    assert tuned_options(replace(key, device="NVIDIA H200"), 8, "fp32") is None
    assert tuned_options(replace(key, input_shape="3x8x8"), 8, "fp32") is None
    model.write_text("width = 16\n")
    assert tuned_options(key, 8, "fp32") is None


def test_a_folder_that_cannot_be_written_does_not_fail_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not save_document(tmp_path / "file" / "result.json", result().to_saved())


def test_batches_report_the_largest_and_the_saturating_one() -> None:
    batches = result().batches
    assert batches is not None
    assert (batches.largest, batches.saturating) == (40, 20)


@pytest.mark.parametrize(
    ("gradients", "rounding", "inherent", "expected"),
    [(1e-7, 1e-8, None, True), (1e-3, 1e-4, None, True), (1e-2, 1e-4, None, False), (1e-2, 1e-4, 6e-3, True)],
)
def test_rounding_is_judged_by_what_a_change_in_the_last_bit_does(
    gradients: float, rounding: float, inherent: float | None, expected: bool
) -> None:
    baseline = None if inherent is None else Deviation(0.0, inherent, rounding)
    assert is_rounding(Deviation(0.0, gradients, rounding), baseline) is expected


def test_compilation_pays_off_after_the_steps_that_save_its_seconds() -> None:
    assert payback([0.3, 0.2], 0.1, 10.0) == 100
    assert payback([0.3, 0.1], 0.1, 10.0) is None


def test_the_lines_for_plain_pytorch_run_and_train() -> None:
    options = ExecutionOptions("eager", "default", "channels_last", "fft", "bf16")
    convolution = nn.Conv2d(3, 4, 5)
    model = nn.Sequential(convolution, nn.Flatten(), nn.Linear(64, 2))
    inputs, targets = torch.randn(2, 3, 8, 8), torch.tensor([0, 1])
    names: dict[str, Any] = {"torch": torch, "model": model, "inputs": inputs, "targets": targets}
    lines = code_lines(options, "cpu")["Plain PyTorch"]
    exec("\n".join(lines), {**names, "loss_function": nn.functional.cross_entropy}, names)
    names["loss"].backward()
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
    assert type(convolution).__name__ == "FourierConv2d"
    assert names["inputs"].is_contiguous(memory_format=torch.channels_last)
    assert convolution.weight.grad is not None


@pytest.mark.parametrize(
    ("options", "kind", "line"),
    [
        (COMPILED, "Plain PyTorch", "model = torch.compile(model)"),
        (
            replace(COMPILED, compile_mode="reduce-overhead"),
            "Lightning",
            'model = torch.compile(model, mode="reduce-overhead")',
        ),
        (
            replace(REDUCED, precision="bf16"),
            "transformers Trainer",
            'TrainingArguments(..., torch_compile=True, torch_compile_mode="reduce-overhead", bf16=True, '
            'optim="adamw_torch_fused")',
        ),
        (ExecutionOptions("graph"), "Plain PyTorch", "model = torch.cuda.make_graphed_callables(model, (inputs,))"),
        (ExecutionOptions(precision="fp16"), "Lightning", 'Trainer(..., precision="16-mixed")'),
        (ExecutionOptions(precision="tf32"), "Lightning", "torch.backends.cuda.matmul.allow_tf32 = True"),
    ],
)
def test_lines_for_other_scripts(options: ExecutionOptions, kind: str, line: str) -> None:
    assert line in code_lines(options, "cuda")[kind]


def test_files_of_out(tmp_path: Path) -> None:
    files = write_files(result(), tmp_path)
    assert {file.name for file in files} == {"tune.json", "tune.png", "tune.svg"}
    assert json.loads((tmp_path / "tune.json").read_text())["best"]["speedup"] == 2.5
    svg = (tmp_path / "tune.svg").read_text()
    assert all(text in svg for text in ("fft convolutions", "2.50x", "roofline", "changes the result"))
    assert "this machine has no g++" not in svg
