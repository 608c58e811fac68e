"""Model that also uses the detached weights of a late layer at its beginning; ranks import it by name."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn
from torch.nn import functional

from scalewise.models.workload import Workload
from tests.tiny import CLASSES, INPUTS, float32

WIDTH, LAYERS = 384, 6
"""Large enough for the new weights of the last layer to arrive during backward."""


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(INPUTS, WIDTH)
        self.between = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)))
        self.twice = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        first = functional.linear(self.into(inputs).tanh(), self.twice.weight.detach()).tanh()
        outputs: Tensor = self.out(self.twice(self.between(first)).tanh())
        return outputs


def detached() -> Workload:
    return replace(float32(), model=Detached, optimizer="sgd", learning_rate=1.0)
