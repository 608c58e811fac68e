"""Synthetic model with any number of parameters and flops."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from scalewise.core.errors import UserError
from scalewise.data.dataset import SOURCE, Data, DataRequest, refuse_folder, samples_to_make
from scalewise.models.workload import Workload, classification_accuracy, classification_loss

CLASSES = 10
TOKENS = 8
SAMPLES = 2_000
TOLERANCE = 0.01
MOST_ACTIVATION_BYTES = 2**30


@dataclass(frozen=True)
class Sizes:
    """Sizes of a synthetic model: an embedding table without flops and linear layers with flops at every position."""

    rows: int
    width: int
    layers: int
    last_width: int
    positions: int

    @property
    def dense(self) -> int:
        return (self.layers - 1) * self.width**2 + self.width * self.last_width

    @property
    def parameters(self) -> int:
        return self.rows * self.width + self.dense + self.last_width * CLASSES

    @property
    def flops(self) -> int:
        return 2 * (self.positions * self.dense + self.last_width * CLASSES)


def build(name: str, parameters: int, flops: int, layers: int) -> Workload:
    sizes = fit_sizes(name, parameters, flops, layers)
    return Workload(
        name=name,
        model=partial(synthetic, sizes),
        data=partial(load_tokens_by_class, rows=sizes.rows),
        loss=classification_loss,
        accuracy=classification_accuracy,
        input_shape=(TOKENS,),
        input_dtype=torch.int64,
    )


def fit_sizes(name: str, parameters: int, flops: int, layers: int) -> Sizes:
    """Return sizes whose parameters and flops are both within 1 % of the given numbers."""
    for option, value in {"parameters": parameters, "flops": flops, "layers": layers}.items():
        if value < 1:
            raise UserError(f"'{name}': {option} must be at least 1, not {value}")
    best = next(
        (sizes for sizes in _candidates(parameters, flops, layers) if _is_close(sizes, parameters, flops)), None
    )
    if best is None:
        raise UserError(
            f"'{name}': no {layers} linear layers have {parameters:,} parameters and {flops:,} flops within 1 %; "
            "raise both numbers, or set layers lower"
        )
    activation_bytes = 4 * best.positions * best.width * best.layers
    if activation_bytes > MOST_ACTIVATION_BYTES:
        raise UserError(
            f"'{name}': {flops:,} flops with {parameters:,} parameters need {activation_bytes / 2**30:.1f} GB of "
            "activations per sample; raise parameters or lower flops"
        )
    return best


def _candidates(parameters: int, flops: int, layers: int) -> Iterator[Sizes]:
    """Yield candidate sizes, those with most parameters in linear layers first; the table holds the rest."""
    for table_percent in (0, 1, 2, 5, 10, 20, 30, 40, 50):
        positions = math.ceil(flops / (2 * parameters * (1 - table_percent / 100)))
        dense = flops / (2 * positions)
        square = math.isqrt(int(dense / layers))
        for width in sorted(range(max(1, square - 8), square + 9), key=lambda width: abs(width - square)):
            last_width = round((dense - (layers - 1) * width**2) / (width + CLASSES / positions))
            if last_width >= 1:
                bare = Sizes(0, width, layers, last_width, positions)
                rows = max(CLASSES, round((parameters - bare.parameters) / width))
                yield dataclasses.replace(bare, rows=rows)


def _is_close(sizes: Sizes, parameters: int, flops: int) -> bool:
    return max(abs(sizes.parameters / parameters - 1), abs(sizes.flops / flops - 1)) <= TOLERANCE


def synthetic(sizes: Sizes) -> nn.Sequential:
    widths = [sizes.width] * sizes.layers + [sizes.last_width]
    dense: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layer = nn.Linear(inputs, outputs, bias=False)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        dense += [layer, nn.ReLU()]
    head = nn.Linear(sizes.last_width, CLASSES, bias=False)
    return nn.Sequential(Lookup(sizes), *dense, Mean(), head)


class Lookup(nn.Module):
    """Mean of a sample's embedding vectors, repeated for every position with another factor."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.table = nn.Embedding(sizes.rows, sizes.width)
        self.positions = sizes.positions

    def forward(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.table(tokens).mean(1, keepdim=True)
        strengths = torch.linspace(0.5, 1.5, self.positions, device=vectors.device, dtype=vectors.dtype)
        return vectors * strengths.unsqueeze(1)


class Mean(nn.Module):
    """Mean over the positions."""

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors.mean(1)


def load_tokens_by_class(request: DataRequest, rows: int) -> Data:
    """Generate eight tokens per sample that all equal the label modulo 10, from few rows of the table."""
    refuse_folder(request, "'synthetic'")
    count = samples_to_make(request, SAMPLES)
    random = torch.Generator().manual_seed(request.seed)
    labels = torch.arange(count) % CLASSES
    tens = torch.randint(min(rows, 1000) // CLASSES, (count, TOKENS), generator=random)
    return Data(SOURCE, (CLASSES * tens + labels.unsqueeze(1), labels))
