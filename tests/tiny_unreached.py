"""Workloads whose steps do not give every parameter a gradient; ranks import them by name."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from torch import Tensor, nn

from scalewise.workloads.workload import Workload
from tests.tiny import CLASSES, INPUTS, float32


def never() -> Workload:
    """One of its layers is never called, between two that are."""
    return replace(float32(), model=lambda: Gated(lambda _: False))


def never_in_a_row() -> Workload:
    """The same inside each of four layers that can be cut apart."""
    width = [INPUTS, 5, 5, 5, CLASSES]
    return replace(float32(), model=lambda: nn.Sequential(*(Half(takes, gives) for takes, gives in pairwise(width))))


def at_first() -> Workload:
    """Called for the first sample, with which it is tried, and for no whole batch."""
    return replace(float32(), model=lambda: Gated(lambda inputs: len(inputs) == 1))


def later() -> Workload:
    """The other way round."""
    return replace(float32(), model=lambda: Gated(lambda inputs: len(inputs) > 1))


def at_random() -> Workload:
    """Skipped in every other step or so, as Python's own random numbers have it."""
    return replace(float32(), model=lambda: Gated(lambda _: random.random() < 0.5))


def frozen() -> Workload:
    """Its first layer does not learn."""

    def model() -> nn.Module:
        layers = nn.Sequential(nn.Linear(INPUTS, 5), nn.Tanh(), nn.Linear(5, CLASSES))
        layers[0].requires_grad_(False)
        return layers

    return replace(float32(), model=model)


class Half(nn.Module):
    """Has two layers, and calls one."""

    def __init__(self, takes: int, gives: int) -> None:
        super().__init__()
        self.called, self.never = nn.Linear(takes, gives), nn.Linear(takes, gives)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.called(inputs).tanh()
        return outputs


class Gated(nn.Module):
    """Calls the layer in the middle for some inputs."""

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
