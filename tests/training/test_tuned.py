"""`train --tuned`: options of a saved tune result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import scalewise
from scalewise.core.errors import UserError
from scalewise.core.training_options import ExecutionOptions, Precision, TrainingOptions
from scalewise.formats.tuned import TunedKey, plain_options, result_file, save_document
from scalewise.launch.devices import device_name
from scalewise.strategies.registry import strategy_of
from scalewise.training.setup import settings_of
from scalewise.training.tuned import with_tuned_options
from tests.tuning.test_result import result, trial

MODEL = str(Path(__file__).parents[1] / "tuning" / "model.py") + ":net"
SHAPE: dict[str, Any] = {"input_shape": "1x8x8", "classes": 3}
FAST = ExecutionOptions("eager", memory_format="channels_last", convolutions="fft")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def save(options: ExecutionOptions, *, batch: int = 4, precision: Precision = "fp32", workload: str = MODEL) -> None:
    """Save a tune result on this machine's CPU core with these options as the fastest."""
    shape = SHAPE if workload == MODEL else {}
    key = TunedKey(workload, device_name(torch.device("cpu")), **shape)
    options = replace(options, precision=precision)
    trials = (trial(plain_options(precision), 1.0), trial(options, 2.0))
    saved = result(batch, precision, trials=trials, best_options=options, batches=None)
    assert save_document(result_file(key, batch, precision), saved.to_saved())


def test_training_uses_the_fastest_options_and_says_so() -> None:
    save(FAST)
    trained = scalewise.train(MODEL, batch=6, steps=2, samples=12, device_kind="cpu", tuned=True, **SHAPE)
    assert (trained.execution, trained.memory_format, trained.convolutions) == ("eager", "channels_last", "fft")
    assert trained.notes[0] == (
        "tuned: 2x (channels_last, fft convolutions; same mathematics) on one device at batch 4, measured on 2026-11-19"
    )


def test_without_a_result_the_command_to_run_is_named() -> None:
    with pytest.raises(UserError) as refusal:
        scalewise.train(MODEL, batch=6, steps=2, device_kind="cpu", tuned=True, **SHAPE)
    text = str(refusal.value)
    assert f"'{MODEL}' has not been tuned on {device_name(torch.device('cpu'))} in fp32" in text
    assert f"run: scalewise tune {MODEL} --input 1x8x8 --classes 3 --batch 6" in text


def test_a_result_in_another_precision_is_not_used_but_named() -> None:
    save(FAST, precision="bf16")
    with pytest.raises(UserError, match=r"in fp32 with these versions \(only in bf16\); run: scalewise tune"):
        scalewise.train(MODEL, batch=6, steps=2, device_kind="cpu", tuned=True, **SHAPE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"execution": "compile"}, "--tuned chooses --execution, but --execution compile is given"),
        ({"memory_format": "channels_last"}, "--tuned chooses --memory-format"),
        ({"convolutions": "fft"}, "--tuned chooses --convolutions"),
        ({"device_kind": "slice"}, "--tuned needs whole devices"),
    ],
)
def test_options_that_tune_chooses_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        scalewise.train("linear", steps=1, tuned=True, **options)


def test_a_workload_object_cannot_be_found_again() -> None:
    model = torch.nn.Linear(4, 2)
    with pytest.raises(UserError, match="--tuned finds results by the workload's name"):
        scalewise.train(model, input_shape=(4,), steps=1, device_kind="cpu", tuned=True)


@pytest.mark.parametrize(
    ("strategy", "tuned", "used", "unused"),
    [
        ("mirrored", replace(FAST, execution="compile"), replace(FAST, execution="compile"), ""),
        (
            "mirrored",
            ExecutionOptions("compile", "max-autotune", convolutions="auto"),
            ExecutionOptions("compile", "max-autotune-no-cudagraphs"),
            "mirrored does not use --compile-mode max-autotune, --convolutions auto",
        ),
        (
            "ring",
            FAST,
            ExecutionOptions("eager"),
            "ring does not use --memory-format channels_last, --convolutions fft",
        ),
        ("sharded", ExecutionOptions("graph"), ExecutionOptions("auto"), "sharded does not use --execution graph"),
        ("single", ExecutionOptions("graph"), ExecutionOptions("graph"), ""),
    ],
)
def test_ranks_use_what_their_strategy_supports(
    strategy: str, tuned: ExecutionOptions, used: ExecutionOptions, unused: str
) -> None:
    save(tuned, workload="conv", batch=20)
    options = TrainingOptions(strategy=strategy, device_kind="cpu", tuned=True)
    chosen = strategy_of(strategy)
    settings, notes = with_tuned_options(settings_of(options, 20), chosen, "conv", options, 20)
    assert settings.execution_options == used
    assert notes[1:] == ([f"tuned: {unused}"] if unused else [])
    chosen.check_execution(settings.execution_options)
