"""Rates of devices: from specifications, or measured here."""

from __future__ import annotations

import pytest
import torch

from scalewise.hardware.gpus import gpu_named
from scalewise.probe import contention
from scalewise.probe.contention import limits_of, measured_limits


def test_a_gpu_has_the_rates_of_its_specification() -> None:
    achievable, peak = limits_of(gpu_named("h200"), "bf16")
    assert peak is not None
    assert peak.TFLOPS["bf16"] == 989.4
    assert 0.5 * 989.4 < achievable.TFLOPS["bf16"] < 989.4


def test_a_core_is_measured_in_its_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "SIDES", {"cpu": 128})
    monkeypatch.setattr(contention, "COPY_BYTES", {"cpu": 2**20})
    monkeypatch.setattr(contention, "SECONDS", 0.01)
    limits = measured_limits(torch.device("cpu"), "bf16")
    assert set(limits.TFLOPS) == {"fp32", "bf16"}
    assert 1e-4 < limits.TFLOPS["fp32"] < 10
    assert 0.1 < limits.GBps < 10_000
    assert limits.kind == "measured"
