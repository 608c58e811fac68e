"""Vision transformer in plain torch, split into stages or by attention heads without further declarations.

scalewise advise examples/vit.py:vit_b16 --input 3x224x224 --classes 1000 --batch 256 --cluster '8 x a100-nvlink'
scalewise train examples/vit.py:vit_tiny --input 3x32x32 --classes 10 --batch 16 --steps 20
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional


class PatchEmbedding(nn.Module):
    """Images [batch, 3, size, size] -> tokens [batch, 1 + patches, width]; the first token is for the class."""

    def __init__(self, size: int, patch: int, width: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.empty(1, 1 + (size // patch) ** 2, width).normal_(std=0.02))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.project(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1)
        return tokens + self.position


class Attention(nn.Module):
    """Self-attention with separate projections.

    `tensor_parallel` names the layers that --strategy tensor splits; columns of one head stay together.
    """

    tensor_parallel: ClassVar = {"query": "columns", "key": "columns", "value": "columns", "output": "rows"}

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = (self._heads(project(tokens)) for project in (self.query, self.key, self.value))
        attended = functional.scaled_dot_product_attention(query, key, value)
        result: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return result

    def _heads(self, tokens: Tensor) -> Tensor:
        return tokens.view(*tokens.shape[:2], -1, self.head_width).transpose(1, 2)


class Block(nn.Module):
    """Attention and feed-forward layer, each after a layer norm and with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.attention_norm(tokens))
        result: Tensor = tokens + self.feed_forward(self.feed_forward_norm(tokens))
        return result


class Head(nn.Module):
    """Class scores from the first token."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.linear(self.norm(tokens[:, 0]))
        return scores


def vision_transformer(size: int, patch: int, width: int, layers: int, heads: int, classes: int) -> nn.Sequential:
    """Build the model as a sequence of blocks, which `layers` and `pipeline` split between any two."""
    blocks = (Block(width, heads) for _ in range(layers))
    return nn.Sequential(PatchEmbedding(size, patch, width), *blocks, Head(width, classes))


def vit_b16() -> nn.Module:
    """ViT-B/16: 86.6 million parameters, images of 224 x 224."""
    return vision_transformer(size=224, patch=16, width=768, layers=12, heads=12, classes=1000)


def vit_tiny() -> nn.Module:
    """A small one for images of 32 x 32 and 10 classes."""
    return vision_transformer(size=32, patch=8, width=64, layers=4, heads=4, classes=10)
