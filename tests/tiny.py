"""Small workloads for fast tests of all strategies; ranks import them by name."""

from __future__ import annotations

import torch
from torch import nn

from scalewise.data.dataset import Data, DataRequest
from scalewise.models.workload import Workload, classification_accuracy, classification_loss

INPUTS, CLASSES = 6, 3


def float64() -> Workload:
    return _tiny("float64", torch.float64, "adam")


def float32() -> Workload:
    return _tiny("float32", torch.float32, "momentum")


def _tiny(name: str, dtype: torch.dtype, optimizer: str) -> Workload:
    return Workload(
        name=name,
        # Four layers, so that each of four devices has one.
        model=lambda: nn.Sequential(nn.Linear(INPUTS, 5), nn.Tanh(), nn.Linear(5, CLASSES), nn.Identity()).to(dtype),
        data=lambda request: _data(request, dtype),
        loss=classification_loss,
        accuracy=classification_accuracy,
        input_shape=(INPUTS,),
        input_dtype=dtype,
        optimizer=optimizer,
        learning_rate=0.05,
    )


def _data(request: DataRequest, dtype: torch.dtype) -> Data:
    generator = torch.Generator().manual_seed(request.seed)
    samples = request.samples or 16
    inputs = torch.randn(samples, INPUTS, dtype=dtype, generator=generator)
    return Data("generated numbers", (inputs, inputs[:, :CLASSES].argmax(1)))


def huge_steps() -> Workload:
    """Return a workload whose loss becomes infinite in the first steps."""
    tiny = _tiny("huge", torch.float32, "sgd")
    return Workload(
        tiny.name,
        tiny.model,
        tiny.data,
        lambda outputs, targets: tiny.loss(outputs * 1e30, targets) * 1e38,
        (INPUTS,),
        learning_rate=1.0,
        optimizer="sgd",
    )
