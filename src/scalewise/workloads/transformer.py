"""A small decoder-only language model that predicts the next byte of text."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalewise.data.text import load_text
from scalewise.errors import UserError
from scalewise.workloads.workload import Workload


def build(name: str, layers: int, width: int, heads: int, context: int, vocabulary: int) -> Workload:
    sizes = {"layers": layers, "width": width, "heads": heads, "context": context, "vocabulary": vocabulary}
    for option, value in sizes.items():
        if value < 1:
            raise UserError(f"'{name}': {option} must be at least 1, not {value}")
    if width % heads:
        raise UserError(f"'{name}': {heads} heads do not divide a width of {width}")
    return Workload(
        name=name,
        model=partial(transformer, layers, width, heads, context, vocabulary),
        data=partial(load_text, context=context, vocabulary=vocabulary),
        loss=next_token_loss,
        accuracy=next_token_accuracy,
        input_shape=(context,),
        input_dtype=torch.int64,
    )


def next_token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def next_token_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) == targets).float().mean()


def transformer(layers: int, width: int, heads: int, context: int, vocabulary: int) -> nn.Sequential:
    """A sequence of blocks, so that it can be cut between any two."""
    return nn.Sequential(
        Embedding(vocabulary, context, width),
        *(Block(width, heads) for _ in range(layers)),
        nn.LayerNorm(width),
        nn.Linear(width, vocabulary, bias=False),
    )


class Embedding(nn.Module):
    """Each token's vector plus its position's."""

    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        for table in (self.token, self.position):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        vectors: Tensor = self.token(tokens) + self.position(positions)
        return vectors


class Block(nn.Module):
    """Attention, then a feed-forward layer, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, vectors: Tensor) -> Tensor:
        vectors = vectors + self.attention(self.attention_norm(vectors))
        result: Tensor = vectors + self.feed_forward(self.feed_forward_norm(vectors))
        return result


class Attention(nn.Module):
    """Causal self-attention; with separate projections, and heads counted from what they give, it can be cut."""

    tensor_parallel: ClassVar = {"query": "columns", "key": "columns", "value": "columns", "output": "rows"}

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, vectors: Tensor) -> Tensor:
        query, key, value = (self._heads(project(vectors)) for project in (self.query, self.key, self.value))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return result

    def _heads(self, vectors: Tensor) -> Tensor:
        return vectors.view(*vectors.shape[:2], -1, self.head_width).transpose(1, 2)
