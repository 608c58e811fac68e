"""Models whose memory is hard to plan, such as an LSTM, for which oneDNN allocates more than its tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scalewise.data.dataset import Data, DataRequest
from scalewise.models.workload import Workload, classification_loss

STEPS, FEATURES, WIDTH, CLASSES = 64, 32, 96, 10
CHANNELS, PIXELS = 16, 16


class Recurrent(nn.Module):
    """Two LSTM layers and a linear head on the last time step."""

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


class Residual(nn.Module):
    """Convolutions, batch norm, functions and skip connections: only torch.export can split it into stages."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, CHANNELS, 3, padding=1), nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(CHANNELS, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        value = self.stem(inputs)
        for block in self.blocks:
            value = block(value)
        outputs: Tensor = self.head(value.mean((2, 3)))
        return outputs


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(2))
        self.norm, self.last_norm = nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS)

    def forward(self, value: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(value)))
        return torch.relu(value + self.last_norm(self.second(hidden)))


class Normed(nn.Module):
    """Convolutions with batch norm in a sequence, without skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(CHANNELS) for _ in range(3))
        self.head = nn.Linear(CHANNELS, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        value = self.stem(inputs)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            value = torch.relu(norm(layer(value)))
        outputs: Tensor = self.head(value.mean((2, 3)))
        return outputs


def normed() -> Workload:
    return _classified("normed", Normed, (3, PIXELS, PIXELS))


def residual() -> Workload:
    return _classified("residual", Residual, (3, PIXELS, PIXELS))


def _classified(name: str, model: type[nn.Module], shape: tuple[int, ...]) -> Workload:
    def data(request: DataRequest) -> Data:
        generator = torch.Generator().manual_seed(request.seed)
        samples = request.samples or 16
        inputs = torch.randn(samples, *shape, generator=generator)
        return Data("generated numbers", (inputs, torch.randint(CLASSES, (samples,), generator=generator)))

    return Workload(name=name, model=model, data=data, loss=classification_loss, input_shape=shape)
