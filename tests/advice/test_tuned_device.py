"""Saved tune results in the advice: the line before the verdict and the key `baseline`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import scalewise
from scalewise.core.training_options import ExecutionOptions
from scalewise.formats.tuned import TunedKey, plain_options, result_file, save_document
from tests.tuning.test_result import result, trial

QUESTION: dict[str, Any] = {"cluster": "4x-gtx-1080-ti", "devices": [1, 2], "strategy": "mirrored", "batch": 100}
FAST = replace(plain_options(), execution="compile", memory_format="channels_last")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def save(options: ExecutionOptions, speedup: float, *, batch: int = 100, device: str = "GTX 1080 Ti") -> None:
    trials = (trial(plain_options(), 1.0), *([trial(options, speedup)] if options != plain_options() else []))
    saved = result(batch, "fp32", trials=trials, best_options=options, batches=None)
    assert save_document(result_file(TunedKey("linear", device), batch, "fp32"), saved.to_saved())


def test_a_tuned_device_stands_first_and_speedups_name_their_baseline() -> None:
    save(FAST, 2.7)
    advice = scalewise.advise("linear", **QUESTION)
    text = " ".join(str(advice).split())
    assert text.startswith(
        "One device tuned: 2.7x (compile, channels_last; same mathematics). Use it with `train --tuned`. Stay on one"
    )
    assert "Speed-ups are relative to one device that is not tuned." in text
    baseline = advice.to_dict()["baseline"]
    assert (baseline["devices"], baseline["execution"], baseline["precision"]) == (1, "eager", "fp32")
    assert (baseline["tuned"]["speedup"], baseline["tuned"]["label"]) == (2.7, "compile, channels_last")
    assert baseline["tuned"]["options"]["memory_format"] == "channels_last"


def test_a_result_of_another_batch_says_so() -> None:
    save(FAST, 2.7, batch=32)
    assert "same mathematics) at batch 32." in str(scalewise.advise("linear", **QUESTION)).splitlines()[0]


def test_tuning_that_gained_nothing_is_a_note() -> None:
    save(plain_options(), 1.0)
    text = " ".join(str(scalewise.advise("linear", **QUESTION)).split())
    assert "One device was tuned: no option is faster than plain training (batch 100)." in text
    assert "One device tuned:" not in text


@pytest.mark.parametrize("device", ["", "NVIDIA H200"])
def test_without_a_result_of_this_device_one_line_says_that_tuning_has_not_been_tried(device: str) -> None:
    if device:
        save(FAST, 2.7, device=device)
    advice = scalewise.advise("linear", **QUESTION)
    text = " ".join(str(advice).split())
    assert "Tuning one device has not been tried (scalewise tune linear --batch 100)." in text
    assert advice.to_dict()["baseline"]["tuned"] is None


def test_a_model_without_a_name_has_no_command_to_tune() -> None:
    advice = scalewise.advise(nn.Linear(4, 2), input_shape=(4,), step_time="0.01@8", cluster="4x-gtx-1080-ti")
    assert "Tuning one device has not been tried." in " ".join(str(advice).split())
