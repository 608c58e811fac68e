"""Small convolutional workload that every execution option applies to; ranks import it by name."""

from __future__ import annotations

import torch
from torch import nn

from scalewise.data.dataset import Data, DataRequest
from scalewise.models.workload import Workload, classification_loss

SIZE, CLASSES = 9, 3


def images() -> Workload:
    return _workload("images", torch.float64)


def images32() -> Workload:
    return _workload("images32", torch.float32)


def _workload(name: str, dtype: torch.dtype) -> Workload:
    return Workload(
        name=name,
        model=lambda: nn.Sequential(
            nn.Conv2d(2, 4, 5, padding=2),
            nn.Tanh(),
            nn.Conv2d(4, 4, 3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(196, CLASSES),
        ).to(dtype),
        data=lambda request: _data(request, dtype),
        loss=classification_loss,
        input_shape=(2, SIZE, SIZE),
        input_dtype=dtype,
        optimizer="adam",
        learning_rate=0.01,
    )


def _data(request: DataRequest, dtype: torch.dtype) -> Data:
    generator = torch.Generator().manual_seed(request.seed)
    samples = request.samples or 16
    inputs = torch.randn(samples, 2, SIZE, SIZE, dtype=dtype, generator=generator)
    return Data("generated numbers", (inputs, inputs.flatten(1)[:, :CLASSES].argmax(1)))
