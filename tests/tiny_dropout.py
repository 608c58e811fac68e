"""Models that record the random numbers that they draw in training; ranks import them by name."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from scalewise.models.workload import Workload
from tests.tiny import CLASSES, INPUTS, float64

WIDTH = 40


class Remembered(nn.Module):
    """Dropout that keeps its last mask of the first sample in a buffer."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.zeros(WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        mask = functional.dropout(torch.ones_like(value), 0.5, self.training)
        if self.training:
            self.mask.copy_(mask[0])
        return value * mask


def remembered() -> Workload:
    """Return a model with two recorded dropouts, in different stages if there are several."""

    def model() -> nn.Module:
        first, second, last = nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        return nn.Sequential(first, Remembered(), second, Remembered(), last).double()

    return replace(float64(), name="remembered", model=model)


def paired() -> Workload:
    """Return a model with two layers that are split unevenly, followed by dropout."""

    def model() -> nn.Module:
        first, second, last = nn.Linear(INPUTS, 7), nn.Linear(7, WIDTH), nn.Linear(WIDTH, CLASSES)
        return nn.Sequential(first, nn.Tanh(), second, Remembered(), last).double()

    return replace(float64(), name="paired", model=model)


class Seen(nn.Module):
    """Dropout that keeps its last mask in an attribute."""

    kept: Tensor

    def forward(self, value: Tensor) -> Tensor:
        self.kept = functional.dropout(torch.ones_like(value), 0.5, self.training)
        return value * self.kept


class Split(nn.Module):
    """Has dropout on whole and on split features, with `columns=up,rows=down`."""

    def __init__(self, inner: int, again: bool = False) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.up, self.down = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH)
        self.before, self.between, self.behind = Seen(), Seen(), Seen()
        self.again = again

    def forward(self, inputs: Tensor) -> Tensor:
        value = self.before(self.enter(inputs))
        value = checkpoint(self._middle, value, use_reentrant=False) if self.again else self._middle(value)
        result: Tensor = self.head(self.behind(value))
        return result

    def _middle(self, value: Tensor) -> Tensor:
        result: Tensor = self.down(self.between(torch.tanh(self.up(value))))
        return result


def even() -> Workload:
    return replace(float64(), name="even", model=lambda: Split(2 * WIDTH).double())


def uneven() -> Workload:
    return replace(float64(), name="uneven", model=lambda: Split(2 * WIDTH + 1).double())


def uneven_again() -> Workload:
    """Return a model with activation checkpointing between column and row layers."""
    return replace(float64(), name="uneven", model=lambda: Split(2 * WIDTH + 1, again=True).double())


class WholeSamples(Split):
    """Drops whole samples, of which each part of a split model has some features."""

    def _middle(self, value: Tensor) -> Tensor:
        inner = self.up(value)
        mask = torch.rand(len(value), 1, dtype=value.dtype, device=value.device) > 0.5
        result: Tensor = self.down(inner * mask)
        return result


def whole_samples() -> Workload:
    return replace(float64(), name="whole samples", model=lambda: WholeSamples(4).double())
