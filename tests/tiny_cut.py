"""Small models of all kinds that can be split into stages; ranks import them by name."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalewise.data.dataset import Data, DataRequest
from scalewise.models.transformer import load_text, next_token_loss, transformer
from scalewise.models.unet import build as build_unet
from scalewise.models.unet import load_shapes, unet
from scalewise.models.workload import Workload
from tests.tiny import float64

IMAGE, CONTEXT = 8, 6


def small_unet() -> Workload:
    """Return a U-Net of three levels with two skips between stages."""
    built = build_unet("unet", width=2, depth=2, norm="none", size=IMAGE)
    return replace(
        built, model=lambda: unet(2, 2, batch_norm=False).double(), data=_float64_shapes, input_dtype=torch.float64
    )


def batch_norm_unet() -> Workload:
    return replace(small_unet(), model=lambda: unet(2, 2, batch_norm=True).double())


def batch_norm() -> Workload:
    """Return a model with batch norm over single values, which cannot normalise a single sample."""

    def model() -> nn.Module:
        hidden = [layer for _ in range(2) for layer in (nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh())]
        return nn.Sequential(*hidden, nn.Linear(6, 3)).double()

    return replace(float64(), model=model)


def _float64_shapes(request: DataRequest) -> Data:
    data = load_shapes(request, size=IMAGE)
    assert data.tensors is not None
    return Data(data.source, (data.tensors[0].double(), data.tensors[1].double()))


def small_transformer() -> Workload:
    return Workload(
        name="transformer",
        model=lambda: transformer(2, 8, 2, CONTEXT, 256).double(),
        data=partial(load_text, context=CONTEXT, vocabulary=256),
        loss=next_token_loss,
        input_shape=(CONTEXT,),
        input_dtype=torch.int64,
    )


class Skipping(nn.Module):
    """Has a skip from the first to the last layer, which a list of stages cannot express."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.last = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        early = torch.tanh(self.first(inputs))
        value = early
        for layer in self.layers:
            value = torch.tanh(layer(value))
        result: Tensor = self.last(value + early)
        return result


def skipping() -> Workload:
    return replace(float64(), model=lambda: Skipping().double())


def in_place() -> Workload:
    """Return a model with in-place activations, which must not be applied twice."""
    sizes = (6, 5, 5, 5, 3)

    def model() -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.LeakyReLU(0.3, inplace=True)]
        return nn.Sequential(*layers[:-1]).double()

    return replace(float64(), model=model)


def keeping() -> Workload:
    """Return a model with activations first and weights last, whose balanced split depends on the samples."""

    def model() -> nn.Module:
        activations, weights = [nn.Tanh() for _ in range(8)], [nn.Linear(20, 20) for _ in range(2)]
        return nn.Sequential(nn.Linear(6, 20), *activations, *weights, nn.Linear(20, 3)).double()

    return replace(float64(), model=model)


class Branches(nn.Module):
    """Not a sequence and not exportable, because its control flow depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        value = self.first(inputs)
        result: Tensor = self.second(value if value.sum() > 0 else -value)
        return result


def undeclared() -> Workload:
    return replace(float64(), model=lambda: Branches().double())


class Named(nn.Module):
    """Sequence of two layers that is not an nn.Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(inputs))
        return result


def declared() -> Workload:
    return replace(float64(), model=lambda: Named().double(), stages=lambda model: [model.body, model.head])  # type: ignore[list-item]


def tied() -> Workload:
    def model() -> nn.Module:
        layers = [nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)]
        layers[2].weight = layers[0].weight
        return nn.Sequential(*layers).double()

    return replace(float64(), model=model)


class _Tied(nn.Module):
    """Has tied weights but is not a sequence: torch.export splits it and gives each part its own weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.second(torch.tanh(self.first(inputs)))))
        return out


def tied_unchained() -> Workload:
    return replace(float64(), model=lambda: _Tied().double())


class Norms(nn.Module):
    """Computes differently in training and evaluation, in batch norm, dropout and attention."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 5), nn.BatchNorm1d(5)
        self.drop = nn.Dropout(dropout)
        self.attention = nn.MultiheadAttention(5, 1, dropout, batch_first=True)
        self.last = nn.Linear(5, 3)
        self.register_buffer("scale", torch.full((5,), 2.0), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        value = self.drop(torch.tanh(self.norm(self.first(inputs)))) * self.scale
        row = value.unsqueeze(1)
        sessions = self.attention(row, row, row, need_weights=False)[0]
        result: Tensor = self.last(sessions.squeeze(1) + value)
        return result


def norms() -> Workload:
    """Return a workload without Adam, which would amplify rounding errors in the zero gradients of attention."""
    return replace(float64(), model=lambda: Norms(0.0).double(), optimizer="momentum")


def dropping() -> Workload:
    return replace(float64(), model=lambda: Norms(0.5).double())


class Dictionaries(nn.Module):
    """Has a list of containers that are never called."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(6, 5), "down": nn.Linear(5, 6)}) for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        value = inputs
        for layer in self.layers:
            value = layer["down"](torch.tanh(layer["up"](value)))  # type: ignore[index]
        result: Tensor = self.head(value)
        return result


def dictionaries() -> Workload:
    return replace(float64(), model=lambda: Dictionaries().double())


class Uncalled(nn.Module):
    """Uses the weights of one list of layers without calling them, and calls the contents of another list."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.held = nn.ModuleList(nn.Linear(5, 5) for _ in range(2))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(5, 5)) for _ in range(2))
        self.last = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        value = self.first(inputs)
        for layer in self.held:
            value = torch.tanh(functional.linear(value, layer.weight, layer.bias))  # type: ignore[arg-type]
        for block in self.blocks:
            value = torch.tanh(block[0](value))  # type: ignore[index]
        result: Tensor = self.last(value)
        return result


def uncalled() -> Workload:
    return replace(float64(), model=lambda: Uncalled().double())


class OnlyHeld(nn.Module):
    """Uses the weights of its layers and calls only the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.held = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.last = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.held:
            inputs = torch.tanh(functional.linear(inputs, layer.weight))  # type: ignore[arg-type]
        result: Tensor = self.last(inputs)
        return result


def only_held() -> Workload:
    return replace(float64(), model=lambda: OnlyHeld().double())


class Output(nn.Module):
    """Uses the weights of the first layer again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.middle, self.norm = nn.Linear(6, 6, bias=False), nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, inputs: Tensor) -> Tensor:
        value = self.norm(torch.tanh(self.middle(self.embedding(inputs))))
        return functional.linear(value, self.embedding.weight)[:, :3]


def used_twice() -> Workload:
    return replace(float64(), model=lambda: Output().double())


class _Turned(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return value.transpose(0, 1)


def turned() -> Workload:
    """Return a model in which two layers pass on tensors whose first dimension is not the batch."""

    def model() -> nn.Module:
        layers = [nn.Linear(6, 5), nn.Tanh(), _Turned(), nn.Identity(), _Turned(), nn.Linear(5, 4), nn.Linear(4, 3)]
        return nn.Sequential(*layers).double()

    return replace(float64(), model=model)


def wrongly_declared() -> Workload:
    """Declare stages that leave out the activation between them."""
    return replace(float64(), model=lambda: Activated(0.0).double(), stages=lambda model: [model.body, model.head])  # type: ignore[list-item]


def dropout_left_out() -> Workload:
    """Declare stages that leave out the dropout between them, which only shows in training."""
    return replace(wrongly_declared(), model=lambda: Activated(0.5).double())


class Two(Named):
    """Returns its input as well; reads values if `looks` is set."""

    def __init__(self, reads_values: bool = False) -> None:
        super().__init__()
        self.reads_values = reads_values

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        assert not self.reads_values or inputs.sum() != 0
        return super().forward(inputs), inputs


def two_tensors() -> Workload:
    return replace(declared(), model=lambda: Two().double(), loss=lambda outputs, _: outputs[0].sum())


def two_tensors_by_numbers() -> Workload:
    return replace(two_tensors(), model=lambda: Two(reads_values=True).double())


def backwards() -> Workload:
    return replace(declared(), stages=lambda model: [model.head, model.body])  # type: ignore[list-item]


class Activated(Named):
    """Has an activation or dropout between the modules that could be its stages."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, inputs: Tensor) -> Tensor:
        value = self.body(inputs)
        value = functional.dropout(value, self.dropout, self.training) if self.dropout else torch.tanh(value)
        result: Tensor = self.head(value)
        return result
