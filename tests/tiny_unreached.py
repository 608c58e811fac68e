"""Workloads in which some parameters get no gradient; ranks import them by name."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from torch import Tensor, nn

from scalewise.models.workload import Workload
from tests.tiny import CLASSES, INPUTS, float32


def never() -> Workload:
    """Return a model whose middle layer is never called."""
    return replace(float32(), model=lambda: Gated(lambda _: False))


def never_in_a_row() -> Workload:
    """Return a sequence of four modules, each with a layer that is never called."""
    width = [INPUTS, 5, 5, 5, CLASSES]
    return replace(
        float32(), model=lambda: nn.Sequential(*(Half(inputs, outputs) for inputs, outputs in pairwise(width)))
    )


def at_first() -> Workload:
    """Return a model whose middle layer is called for the single sample of the check but for no batch."""
    return replace(float32(), model=lambda: Gated(lambda inputs: len(inputs) == 1))


def later() -> Workload:
    """Return a model whose middle layer is called for batches but not for the single sample of the check."""
    return replace(float32(), model=lambda: Gated(lambda inputs: len(inputs) > 1))


def at_random() -> Workload:
    """Return a model whose middle layer is skipped at random, by Python's generator."""
    return replace(float32(), model=lambda: Gated(lambda _: random.random() < 0.5))


def frozen() -> Workload:
    """Return a model with a frozen first layer."""

    def model() -> nn.Module:
        layers = nn.Sequential(nn.Linear(INPUTS, 5), nn.Tanh(), nn.Linear(5, CLASSES))
        layers[0].requires_grad_(False)
        return layers

    return replace(float32(), model=model)


class Half(nn.Module):
    """Has two layers and calls one."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.called, self.never = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.called(inputs).tanh()
        return outputs


class Gated(nn.Module):
    """Calls its middle layer for some inputs only."""

    def __init__(self, calls: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(INPUTS, 5), nn.Linear(5, 5), nn.Linear(5, CLASSES)
        self.calls = calls

    def forward(self, inputs: Tensor) -> Tensor:
        values = self.first(inputs).tanh()
        if self.calls(inputs):
            values = self.middle(values)
        outputs: Tensor = self.last(values)
        return outputs
