"""A model of which a library keeps more than its tensors show."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scalewise.data.data import Data, DataRequest
from scalewise.workloads.classification import classification_loss
from scalewise.workloads.workload import Workload

STEPS, FEATURES, WIDTH, CLASSES = 64, 32, 96, 10


class Recurrent(nn.Module):
    """Two LSTM layers, and what the last of their steps says."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(FEATURES, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        states, _ = self.memory(inputs)
        outputs: Tensor = self.head(states[:, -1])
        return outputs


def recurrent() -> Workload:
    return _classified("recurrent", Recurrent, (STEPS, FEATURES))


def _classified(name: str, model: type[nn.Module], shape: tuple[int, ...]) -> Workload:
    def data(request: DataRequest) -> Data:
        generator = torch.Generator().manual_seed(request.seed)
        samples = request.samples or 16
        inputs = torch.randn(samples, *shape, generator=generator)
        return Data("generated numbers", (inputs, torch.randint(CLASSES, (samples,), generator=generator)))

    return Workload(name=name, model=model, data=data, loss=classification_loss, input_shape=shape)
