"""Models that fail before any rank trains them, and one that does not; tests refer to them by name."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from scalewise.data.dataset import Data, DataRequest
from scalewise.models.workload import Workload
from tests.tiny import CLASSES, INPUTS, float32


def healthy() -> nn.Module:
    return nn.Linear(INPUTS, CLASSES)


class _Raising(nn.Linear):
    def forward(self, _: Tensor) -> Tensor:
        raise ValueError("a bug in forward")


class _TooLarge(nn.Linear):
    def forward(self, _: Tensor) -> Tensor:
        return torch.empty(1 << 60)


def raises() -> nn.Module:
    return _Raising(INPUTS, CLASSES)


def too_large() -> nn.Module:
    return _TooLarge(INPUTS, CLASSES)


def without_data() -> Workload:
    def data(_: DataRequest) -> Data:
        raise FileNotFoundError("no such file: clips.zip")

    return replace(float32(), data=data)
