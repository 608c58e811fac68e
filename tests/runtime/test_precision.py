"""Tests of precision: fp32 without tf32, bf16 with float32 weights, tf32 on a GPU only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scalewise.core.errors import UserError
from scalewise.runtime.optimizers import autocast, set_precision

CPU = torch.device("cpu")


def test_fp32_switches_tf32_off() -> None:
    set_precision("fp32", CPU)
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32


def test_tf32_needs_a_gpu() -> None:
    with pytest.raises(UserError, match="--precision tf32 needs a CUDA device; valid on the CPU: fp32, bf16"):
        set_precision("tf32", CPU)


def test_bf16_computes_in_bfloat16() -> None:
    model = nn.Linear(2, 2)
    with autocast("bf16", CPU):
        assert model(torch.ones(1, 2)).dtype == torch.bfloat16
    with autocast("fp32", CPU):
        assert model(torch.ones(1, 2)).dtype == torch.float32
    assert model.weight.dtype == torch.float32
