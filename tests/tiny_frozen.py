"""Models of which some layers are not trained; ranks import them by name."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from scalewise.workloads.workload import Workload
from tests.tiny import CLASSES, INPUTS, float32

WIDTH = 256
"""Nearly all of the memory is weights."""


def first() -> Workload:
    """As in fine-tuning: those that come first keep what they know."""
    return _frozen(0, 2)


def middle() -> Workload:
    return _frozen(4)


def _frozen(*layers: int) -> Workload:
    def model() -> nn.Module:
        made = nn.Sequential(
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
            made[layer].requires_grad_(False)
        return made

    return replace(float32(), model=model)


class Half(nn.Module):
    """Has two layers, and calls one."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.never = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.called(inputs).tanh()
        return outputs


def never() -> Workload:
    """Some weights of layers that are gathered get no gradient."""
    return replace(
        float32(),
        model=lambda: nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.Tanh(), Half(), Half(), nn.Linear(WIDTH, CLASSES)),
    )


def few_rows() -> Workload:
    """Fewer than four devices have use for; and all of it learns."""
    return replace(
        float32(),
        model=lambda: nn.Sequential(nn.Linear(INPUTS, 40_000), nn.Tanh(), nn.Linear(40_000, CLASSES)),
    )
