"""The classic U-Net: an encoder and a decoder of double convolutions, joined by skip connections at every level."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalewise.data.shapes import load_shapes
from scalewise.errors import UserError
from scalewise.workloads.workload import Workload


def build(name: str, width: int, depth: int, norm: str, size: int) -> Workload:
    if norm not in ("none", "batch"):
        raise UserError(f"'{name}': norm must be none or batch, not '{norm}'")
    if width < 1 or depth < 1:
        raise UserError(f"'{name}': width and depth must be at least 1, not {width} and {depth}")
    if size < 2**depth or size % 2**depth:
        raise UserError(f"'{name}': size must be a multiple of {2**depth}, to be halved {depth} times, not {size}")
    return Workload(
        name=name,
        model=partial(unet, width, depth, batch_norm=norm == "batch"),
        data=partial(load_shapes, size=size),
        loss=functional.binary_cross_entropy_with_logits,
        accuracy=pixel_accuracy,
        input_shape=(1, size, size),
    )


def pixel_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs > 0) == (targets > 0.5)).float().mean()


def unet(width: int, depth: int, batch_norm: bool) -> nn.Sequential:
    """A sequence of levels, so that it can be cut anywhere; the skips travel along in the tuple that they pass on."""
    channels = [width * 2**level for level in range(depth + 1)]
    downs = [Down(below, above, batch_norm) for below, above in zip([1, *channels], channels[:-1], strict=False)]
    bottom = Bottom(channels[-2], channels[-1], batch_norm)
    ups = [Up(2 * above, above, batch_norm) for above in reversed(channels[:-1])]
    return nn.Sequential(*downs, bottom, *ups, Head(width))


Levels = Tensor | tuple[Tensor, ...]
"""The features of the level at work, then the skips that wait for the decoder, the widest first."""


def split(levels: Levels) -> tuple[Tensor, tuple[Tensor, ...]]:
    return (levels, ()) if isinstance(levels, Tensor) else (levels[0], levels[1:])


def double_convolution(inputs: int, outputs: int, batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers.append(nn.Conv2d(channels, outputs, kernel_size=3, padding=1))
        if batch_norm:
            layers.append(nn.BatchNorm2d(outputs))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class Down(nn.Module):
    """Convolves, keeps the result as a skip, halves the image."""

    def __init__(self, inputs: int, outputs: int, batch_norm: bool) -> None:
        super().__init__()
        self.convolutions = double_convolution(inputs, outputs, batch_norm)
        self.pool = nn.MaxPool2d(2)

    def forward(self, levels: Levels) -> Levels:
        features, skips = split(levels)
        features = self.convolutions(features)
        return self.pool(features), *skips, features


class Bottom(nn.Module):
    """Convolves the smallest image."""

    def __init__(self, inputs: int, outputs: int, batch_norm: bool) -> None:
        super().__init__()
        self.convolutions = double_convolution(inputs, outputs, batch_norm)

    def forward(self, levels: Levels) -> Levels:
        features, skips = split(levels)
        return self.convolutions(features), *skips


class Up(nn.Module):
    """Doubles the image, joins the skip of that size, convolves."""

    def __init__(self, inputs: int, outputs: int, batch_norm: bool) -> None:
        super().__init__()
        self.grow = nn.ConvTranspose2d(inputs, outputs, kernel_size=2, stride=2)
        self.convolutions = double_convolution(2 * outputs, outputs, batch_norm)

    def forward(self, levels: Levels) -> Levels:
        features, skips = split(levels)
        features = torch.cat([skips[-1], self.grow(features)], dim=1)
        return self.convolutions(features), *skips[:-1]


class Head(nn.Module):
    """One logit per pixel: does it belong to a shape?"""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, 1, kernel_size=1)

    def forward(self, levels: Levels) -> Tensor:
        logits: Tensor = self.convolution(split(levels)[0])
        return logits
