"""Models with frozen layers; ranks import them by name."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from scalewise.models.workload import Workload
from tests.tiny import CLASSES, INPUTS, float32

WIDTH = 640
"""Wide enough for weights to dominate the memory."""


def first() -> Workload:
    """Return a model with frozen first layers, as in fine-tuning."""
    return _frozen(0, 2)


def middle() -> Workload:
    return _frozen(4)


def _frozen(*layers: int) -> Workload:
    def build() -> nn.Module:
        model = nn.Sequential(
            nn.Linear(INPUTS, WIDTH),
            nn.Tanh(),
            nn.Linear(WIDTH, WIDTH),
            nn.Tanh(),
            nn.Linear(WIDTH, WIDTH),
            nn.Tanh(),
            nn.Linear(WIDTH, WIDTH),
            nn.Tanh(),
            nn.Linear(WIDTH, CLASSES),
        )
        for layer in layers:
            model[layer].requires_grad_(False)
        return model

    return replace(float32(), model=build)


class Half(nn.Module):
    """Has two layers and calls one."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.never = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.called(inputs).tanh()
        return outputs


def never() -> Workload:
    """Return a model in which some weights of gathered layers get no gradient."""
    return replace(
        float32(),
        model=lambda: nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.Tanh(), Half(), Half(), nn.Linear(WIDTH, CLASSES)),
    )


def few_rows() -> Workload:
    """Return a trainable model whose last layer has fewer rows than four devices could share."""
    return replace(
        float32(),
        model=lambda: nn.Sequential(nn.Linear(INPUTS, 80_000), nn.Tanh(), nn.Linear(80_000, CLASSES)),
    )
