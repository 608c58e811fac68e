"""Small decoder-only transformer on bytes of text, and its data."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from scalewise.core.errors import UserError
from scalewise.data.dataset import Data, DataRequest, samples_to_make, samples_to_use
from scalewise.models.workload import Workload

SAMPLES = 2_000
SUBJECTS = ("the worker", "a server", "the ring", "one device", "the model", "a gradient", "the network", "every batch")
VERBS = ("sends", "waits for", "averages", "updates", "splits", "copies", "measures", "follows")
OBJECTS = ("the weights", "its neighbour", "a layer", "the loss", "two halves", "the next step", "all the data")
ENDINGS = ("", " again", " at once", " in turn", " without a pause", " before the others do")


def load_text(request: DataRequest, context: int, vocabulary: int) -> Data:
    """Load samples of `context` bytes; the target of each byte is the next byte."""
    if request.folder is None:
        count = samples_to_make(request, SAMPLES)
        text = generated_text(request.seed, count * context + 1)
        source = "generated text"
    else:
        text = read_text(request.folder)
        available = (len(text) - 1) // context
        if available < 1:
            raise UserError(
                f"'{request.folder}' has {len(text):,} bytes; one sample of context {context} needs {context + 1:,}"
            )
        count = len(samples_to_use(request, available, str(request.folder)))
        source = f"{count:,} samples of text in {request.folder}"
    tokens = np.frombuffer(text, dtype=np.uint8, count=count * context + 1).astype(np.int64)
    if (largest := int(tokens.max())) >= vocabulary:
        raise UserError(f"the text has byte {largest}, but the vocabulary is {vocabulary}; use vocabulary=256")
    inputs, targets = (torch.from_numpy(part.reshape(count, context)) for part in (tokens[:-1], tokens[1:].copy()))
    return Data(source, (inputs, targets))


def generated_text(seed: int, length_bytes: int) -> bytes:
    """Generate sentences of a small grammar. Equal seeds give equal text."""
    choose = random.Random(seed).choice
    text = bytearray()
    while len(text) < length_bytes:
        sentence = f"{choose(SUBJECTS)} {choose(VERBS)} {choose(OBJECTS)}{choose(ENDINGS)}. "
        text += sentence.capitalize().encode()
    return bytes(text[:length_bytes])


def read_text(place: Path) -> bytes:
    """Return the bytes of a text file, or of all .txt files of a folder, sorted by name."""
    paths = sorted(place.glob("*.txt")) if place.is_dir() else [place]
    if not paths:
        raise UserError(f"no .txt files in '{place}'")
    try:
        return b"\n".join(path.read_bytes() for path in paths)
    except FileNotFoundError as error:
        raise UserError(f"no such file or folder: '{error.filename}'") from None
    except OSError as error:
        raise UserError(f"cannot read '{error.filename}': {error.strerror}") from None


def build(name: str, layers: int, width: int, heads: int, context: int, vocabulary: int) -> Workload:
    sizes = {"layers": layers, "width": width, "heads": heads, "context": context, "vocabulary": vocabulary}
    for option, value in sizes.items():
        if value < 1:
            raise UserError(f"'{name}': {option} must be at least 1, not {value}")
    if width % heads:
        raise UserError(f"'{name}': width must be a multiple of heads, but {width} is not a multiple of {heads}")
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
    """Build a transformer as a sequence of blocks, which can be split between any two."""
    return nn.Sequential(
        Embedding(vocabulary, context, width),
        *(Block(width, heads) for _ in range(layers)),
        nn.LayerNorm(width),
        nn.Linear(width, vocabulary, bias=False),
    )


class Embedding(nn.Module):
    """Sum of a token embedding and a position embedding."""

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
    """Pre-norm attention and feed-forward layer, each with a residual connection."""

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
    """Causal self-attention with separate projections, which can be split over devices in whole heads."""

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
