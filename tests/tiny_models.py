"""Small transformers and U-Nets with sizes that no number of devices divides; ranks import them by name."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalewise.data.dataset import Data, DataRequest
from scalewise.models.transformer import next_token_accuracy, next_token_loss, transformer
from scalewise.models.unet import pixel_accuracy, unet
from scalewise.models.workload import Workload, classification_loss
from tests.tiny import float64
from tests.tiny_cut import OnlyHeld

CONTEXT, VOCABULARY, PIXELS = 6, 11, 8


def transformer64() -> Workload:
    """Return a transformer with five heads, so that a device has one, two or three."""
    return _transformer("transformer64", torch.float64, "adam")


def transformer32() -> Workload:
    return _transformer("transformer32", torch.float32, "momentum")


def unet64() -> Workload:
    return _unet("unet64", torch.float64, "adam")


def unet32() -> Workload:
    return _unet("unet32", torch.float32, "momentum")


def _transformer(name: str, dtype: torch.dtype, optimizer: str) -> Workload:
    return Workload(
        name=name,
        model=lambda: transformer(2, 10, 5, CONTEXT, VOCABULARY).to(dtype),
        data=_text,
        loss=next_token_loss,
        accuracy=next_token_accuracy,
        input_shape=(CONTEXT,),
        input_dtype=torch.int64,
        optimizer=optimizer,
        learning_rate=0.02,
    )


def _unet(name: str, dtype: torch.dtype, optimizer: str) -> Workload:
    return Workload(
        name=name,
        model=lambda: unet(5, 2, batch_norm=False).to(dtype),
        data=partial(_images, dtype=dtype),
        loss=functional.binary_cross_entropy_with_logits,
        accuracy=pixel_accuracy,
        input_shape=(1, PIXELS, PIXELS),
        input_dtype=dtype,
        optimizer=optimizer,
        learning_rate=0.02,
    )


def _text(request: DataRequest) -> Data:
    generator = torch.Generator().manual_seed(request.seed)
    text = torch.randint(VOCABULARY, (request.samples or 16, CONTEXT + 1), generator=generator)
    return Data("generated text", (text[:, :-1].contiguous(), text[:, 1:].contiguous()))


def _images(request: DataRequest, dtype: torch.dtype) -> Data:
    generator = torch.Generator().manual_seed(request.seed)
    images = torch.randn(request.samples or 16, 1, PIXELS, PIXELS, dtype=dtype, generator=generator)
    return Data("generated images", (images, (images > 0).to(dtype)))


class Gated(nn.Module):
    """Has two layers with the same input whose product is the input of a third: `columns=gate+up,rows=down`."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 8)
        self.gate = nn.Linear(8, 7)
        self.up = nn.Linear(8, 7)
        self.down = nn.Linear(7, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        outputs: Tensor = self.down(torch.sigmoid(self.gate(hidden)) * self.up(hidden))
        return outputs


def gated64() -> Workload:
    return replace(float64(), name="gated64", model=lambda: Gated().to(torch.float64), loss=classification_loss)


def tied64() -> Workload:
    """Return a model with two layers that share weights."""

    def model() -> nn.Module:
        layers = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
        layers[2].weight = layers[0].weight
        return layers.to(torch.float64)

    return replace(float64(), name="tied64", model=model)


class Listed(nn.Module):
    """Has weights in a ParameterList, which is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.eye(6)) for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        for weight in self.weights:
            inputs = inputs @ weight
        outputs: Tensor = self.head(inputs)
        return outputs


def listed64() -> Workload:
    return replace(float64(), name="listed64", model=lambda: Listed().to(torch.float64))


def held64() -> Workload:
    """Return a model that uses the weights of layers without calling them."""
    return replace(float64(), name="held64", model=lambda: OnlyHeld().to(torch.float64))


class Normed(Gated):
    """Normalises over all features between `columns=gate+up` and `rows=down`, where a device has only some."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        inner = torch.sigmoid(self.gate(hidden)) * self.up(hidden)
        outputs: Tensor = self.down(functional.layer_norm(inner, inner.shape[-1:]))
        return outputs


def normed64() -> Workload:
    return replace(float64(), name="normed64", model=lambda: Normed().to(torch.float64))


class Claimed(Normed):
    tensor_parallel: ClassVar = {"gate": "columns", "up": "columns", "down": "rows"}


class Misnamed(Claimed):
    tensor_parallel: ClassVar = {"gates": "columns", "down": "rows"}


def misnamed64() -> Workload:
    return replace(float64(), name="misnamed64", model=lambda: Misnamed().to(torch.float64))


def claimed64() -> Workload:
    return replace(float64(), name="claimed64", model=lambda: Claimed().to(torch.float64))
