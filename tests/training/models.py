"""Workloads that are hard to resume exactly: dropout, batch norm, and models with unusual behaviour."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from scalewise.data.dataset import Data
from scalewise.models.workload import Workload
from tests.tiny import CLASSES, INPUTS, float32


def dropout() -> Workload:
    return replace(
        float32(),
        model=lambda: nn.Sequential(nn.Linear(INPUTS, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, CLASSES)),
        optimizer="adam",
    )


def batch_norm() -> Workload:
    return replace(
        float32(), model=lambda: nn.Sequential(nn.Linear(INPUTS, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES))
    )


def loaded_by() -> Workload:
    """Targets are the ids of the loader processes; the loss fails if more than two processes load samples."""
    tiny = float32()
    loaders: set[int] = set()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        loaders.update(targets.tolist())
        assert os.getpid() not in loaders
        assert len(loaders) <= 2, f"{len(loaders)} loaders"
        return tiny.loss(outputs, targets % CLASSES)

    return replace(tiny, data=lambda _: Data("generated numbers", items=Loaders()), loss=loss, accuracy=None)


class Loaders(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return torch.full((INPUTS,), float(number)), os.getpid()


def breaks_at_the_fifth() -> Workload:
    """The loss is NaN at the fifth training step."""
    return replace(float32(), model=Counting, accuracy=None)


class Counting(nn.Linear):
    """Linear layer that counts its calls in a buffer, which checkpoints save."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__(INPUTS, CLASSES)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        outputs = super().forward(input)
        return outputs * float("nan") if self.calls == 5 else outputs


def slow_to_predict() -> Workload:
    """Takes 0.3 s for every batch in evaluation mode."""
    tiny = float32()
    return replace(tiny, model=lambda: nn.Sequential(*tiny.model().children(), SlowToPredict()))


class SlowToPredict(nn.Identity):
    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            time.sleep(0.3)
        return input


def unused() -> Workload:
    """Model with a layer that is never called, between two that are."""
    return replace(float32(), model=Unused)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.never, self.last = nn.Linear(INPUTS, 5), nn.Linear(5, 5), nn.Linear(5, CLASSES)

    def forward(self, input: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.first(input).tanh())
        return outputs


def scaled() -> Workload:
    """Model whose first parameter is a scalar, like the step count in optimizer state."""
    return replace(float32(), model=Scaled)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.layer = nn.Linear(INPUTS, CLASSES)

    def forward(self, input: Tensor) -> Tensor:
        outputs: Tensor = self.layer(input) * self.scale
        return outputs
