"""Transformers of published sizes, and models of the library transformers."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from scalewise.core.errors import UserError
from scalewise.core.specs import matching, unknown
from scalewise.data.dataset import load_generated, load_tokens
from scalewise.models.transformer import next_token_accuracy, next_token_loss
from scalewise.models.workload import Workload, classification_accuracy, classification_loss


@dataclass(frozen=True)
class TransformerSize:
    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int
    sequence: int
    style: Literal["gpt", "bert", "llama", "switch"] = "gpt"
    key_value_heads: int | None = None
    """Fewer than `heads` for grouped-query attention."""
    attention: Literal["eager", "fused"] = "fused"
    experts: int = 1
    """Feed-forward networks of a Switch layer; every token goes to one, and all get equally many (balanced)."""
    activation: Literal["gelu", "gelu_tanh_unfused", "relu", "swiglu"] = "gelu"
    tied: bool = True
    checkpointing: Literal["none", "selective", "full"] = "none"
    """Activation checkpointing: selective recomputes all but attention and every second matrix product."""
    tensor_parallel: int = 1
    """Number of ranks that share the model; the operators of one of them are counted.

    Heads, feed-forward and vocabulary are split by columns and rows, other operators by tokens.
    """


class Attention(nn.Module):
    tensor_parallel: ClassVar = {"query": "columns", "key": "columns", "value": "columns", "out": "rows"}
    rotation: Tensor
    """Buffer of the llama style."""

    def __init__(self, size: TransformerSize, causal: bool, cross: bool = False) -> None:
        super().__init__()
        self.size, self.causal, self.cross = size, causal, cross
        self.width = self.head_width = size.hidden // size.heads
        self.heads = size.heads // size.tensor_parallel
        self.groups = (size.key_value_heads or size.heads) // size.tensor_parallel
        bias = size.style in ("gpt", "bert")
        self.query = nn.Linear(size.hidden, self.heads * self.width, bias=bias)
        self.key = nn.Linear(size.hidden, self.groups * self.width, bias=bias)
        self.value = nn.Linear(size.hidden, self.groups * self.width, bias=bias)
        self.out = nn.Linear(self.heads * self.width, size.hidden, bias=bias)
        if size.style == "llama":
            self.register_buffer("rotation", _rotation(size.sequence, self.width), persistent=False)

    def forward(self, hidden: Tensor, memory: Tensor | None = None) -> Tensor:
        hidden = _gathered(hidden, self.size)
        source = hidden if memory is None else memory
        query, key, value = (
            layer(states).view(states.shape[0], states.shape[1], -1, self.width).transpose(1, 2)
            for layer, states in ((self.query, hidden), (self.key, source), (self.value, source))
        )
        if self.size.style == "llama":
            query, key = _rotated(query, self.rotation), _rotated(key, self.rotation)
        if self.groups < self.heads:
            repeats = self.heads // self.groups
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        if self.size.attention == "fused":
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        else:
            scores = query @ key.transpose(-1, -2)
            if self.size.style != "switch":
                scores = scores / math.sqrt(self.width)
            if self.causal:
                mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
                scores = torch.where(mask, scores, torch.full((), -1e4, device=scores.device))
            if self.size.style != "gpt":  # GPT-2 gets no padding mask
                scores = scores + torch.zeros(scores.shape[0], 1, 1, scores.shape[-1], device=scores.device)
            mixed = functional.dropout(scores.softmax(-1), 0.1, self.training) @ value
        return _scattered(self.out(mixed.transpose(1, 2).flatten(2)), self.size)


def _gathered(hidden: Tensor, size: TransformerSize) -> Tensor:
    """Tokens of all ranks; the copy stands for the result of an all-gather."""
    return hidden.repeat(1, size.tensor_parallel, 1) if size.tensor_parallel > 1 else hidden


def _scattered(hidden: Tensor, size: TransformerSize) -> Tensor:
    """Tokens of one rank; the copy stands for the result of a reduce-scatter."""
    return hidden[:, : hidden.shape[1] // size.tensor_parallel].clone() if size.tensor_parallel > 1 else hidden


def _rotation(length: int, width: int) -> Tensor:
    """Rotations of the rotary position embedding, as complex numbers: [length, width / 2]."""
    frequencies = 10_000 ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def _rotated(states: Tensor, rotation: Tensor) -> Tensor:
    """Rotary position embedding: one multiplication of complex numbers."""
    pairs = torch.view_as_complex(states.float().reshape(*states.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation[: states.shape[-2]]).flatten(-2).type_as(states)


class FeedForward(nn.Module):
    """Feed-forward layer: two linear layers, or three with SwiGLU."""

    tensor_parallel: ClassVar = {"up": "columns", "down": "rows"}

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.size, self.activation = size, size.activation
        bias = size.style in ("gpt", "bert")
        width = size.feed_forward // size.tensor_parallel
        self.up = nn.Linear(size.hidden, width, bias=bias)
        self.gate: nn.Module | None = None
        self.down = nn.Linear(width, size.hidden, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = _gathered(hidden, self.size)
        up = self.up(hidden)
        if self.gate is not None:
            up = functional.silu(self.gate(hidden)) * up
        elif self.activation == "relu":
            up = functional.relu(up)
        elif self.activation == "gelu_tanh_unfused":  # as Hugging Face's GPT-2 writes it
            up = 0.5 * up * (1.0 + torch.tanh(0.7979 * (up + 0.044715 * torch.pow(up, 3.0))))
        else:
            up = functional.gelu(up)
        return _scattered(self.down(up), self.size)


class GatedFeedForward(FeedForward):
    """SwiGLU: the first layer is multiplied by a second one."""

    tensor_parallel: ClassVar = {"up": "columns", "gate": "columns", "down": "rows"}

    def __init__(self, size: TransformerSize) -> None:
        super().__init__(size)
        self.gate = nn.Linear(size.hidden, size.feed_forward // size.tensor_parallel, bias=False)


def _feed_forward(size: TransformerSize) -> nn.Module:
    return GatedFeedForward(size) if size.activation == "swiglu" else FeedForward(size)


class Experts(nn.Module):
    """Switch feed-forward: a router and experts that get equally many tokens."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.router = nn.Linear(size.hidden, size.experts, bias=False)
        self.experts = nn.ModuleList(_feed_forward(size) for _ in range(size.experts))

    def forward(self, hidden: Tensor) -> Tensor:
        tokens = hidden.reshape(-1, hidden.shape[-1])
        weights = self.router(tokens.float()).softmax(-1).amax(-1, keepdim=True)
        index = torch.zeros(tokens.shape[0] // len(self.experts), dtype=torch.long, device=tokens.device)
        parts = [expert(tokens[index]) for expert in self.experts]
        mixed = torch.cat([*parts, tokens[: tokens.shape[0] - sum(len(part) for part in parts)]]) * weights
        return mixed.view(hidden.shape)  # type: ignore[no-any-return]


def _norm(size: TransformerSize) -> nn.Module:
    return nn.RMSNorm(size.hidden) if size.style in ("llama", "switch") else nn.LayerNorm(size.hidden)


class Block(nn.Module):
    def __init__(self, size: TransformerSize, causal: bool, cross: bool = False, experts: bool = False) -> None:
        super().__init__()
        self.before = size.style != "bert"
        self.dropout = 0.0 if size.style == "llama" else 0.1
        self.attention, self.norm1 = Attention(size, causal), _norm(size)
        self.feed_forward, self.norm2 = Experts(size) if experts else _feed_forward(size), _norm(size)
        self.cross = Attention(size, causal=False, cross=True) if cross else None
        self.norm3 = _norm(size) if cross else None

    def forward(self, hidden: Tensor, memory: Tensor | None = None) -> Tensor:
        if not self.before:
            hidden = self.norm1(hidden + self._dropped(self.attention(hidden)))
            return self.norm2(hidden + self._dropped(self.feed_forward(hidden)))  # type: ignore[no-any-return]
        hidden = hidden + self._dropped(self.attention(self.norm1(hidden)))
        if self.cross is not None and self.norm3 is not None:
            hidden = hidden + self._dropped(self.cross(self.norm3(hidden), memory))
        return hidden + self._dropped(self.feed_forward(self.norm2(hidden)))

    def _dropped(self, states: Tensor) -> Tensor:
        return functional.dropout(states, self.dropout, self.training) if self.dropout else states


class Embeddings(nn.Module):
    """Token ids to vectors, with learned positions in the GPT and BERT styles."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.size = size
        self.tokens = nn.Embedding(size.vocabulary, size.hidden)
        learned = size.style in ("gpt", "bert")
        self.positions = nn.Embedding(size.sequence, size.hidden) if learned else None

    def forward(self, ids: Tensor) -> Tensor:
        hidden = _scattered(self.tokens(ids), self.size)
        if self.positions is not None:
            hidden = hidden + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return hidden


class Head(nn.Module):
    """Vectors to logits."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.size = size
        self.norm = _norm(size)
        self.linear = nn.Linear(size.hidden, size.vocabulary // size.tensor_parallel, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(_gathered(self.norm(hidden), self.size))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Token ids to logits. Switch has an encoder and a decoder of `layers` blocks, every second one with experts."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.size = size
        switch = size.style == "switch"
        self.embeddings = Embeddings(size)
        experts = [switch and number % 2 == 1 for number in range(size.layers)]
        causal = size.style in ("gpt", "llama")
        self.blocks = nn.ModuleList(Block(size, causal, experts=flag) for flag in experts)
        self.decoder = nn.ModuleList(Block(size, True, cross=True, experts=flag) for flag in experts if switch)
        self.head = Head(size)
        if size.tied:
            self.head.linear.weight = self.embeddings.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embeddings(ids)
        for block in self.blocks:
            if self.size.checkpointing == "none":
                hidden = block(hidden)
            elif self.size.checkpointing == "full":
                hidden = checkpoint(block, hidden, use_reentrant=False)
            else:
                hidden = checkpoint(block, hidden, use_reentrant=False, context_fn=_selective)
        if self.decoder:
            memory, hidden = self.head.norm(hidden), self.embeddings.tokens(ids)
            for block in self.decoder:
                hidden = block(hidden, memory)
        return self.head(hidden)  # type: ignore[no-any-return]

    def stages(self) -> list[nn.Module]:
        """Modules that each take the output of the one before; only without a decoder."""
        return [self.embeddings, *self.blocks, self.head]


def _selective() -> Any:
    """Keep the results of attention and of every second matrix product, as torchtitan does."""
    products = {False: 0, True: 0}

    def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:  # noqa: ARG001
        name = str(func)
        if "aten.mm" in name:
            products[context.is_recompute] += 1
            return (
                CheckpointPolicy.MUST_SAVE if products[context.is_recompute] % 2 else CheckpointPolicy.PREFER_RECOMPUTE
            )
        kept = "scaled_dot_product" in name
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


TRANSFORMERS: dict[str, TransformerSize] = {
    "bert_base": TransformerSize(12, 768, 12, 3072, 30522, 512, "bert"),
    "bert_large": TransformerSize(24, 1024, 16, 4096, 30522, 512, "bert"),
    "gpt2": TransformerSize(12, 768, 12, 3072, 50257, 1024, activation="gelu_tanh_unfused"),
    "gpt2_large": TransformerSize(36, 1280, 20, 5120, 50257, 1024, activation="gelu_tanh_unfused"),
    "llama-2-7b": TransformerSize(32, 4096, 32, 11008, 32_000, 4096, "llama", activation="swiglu", tied=False),
    "llama-2-70b": TransformerSize(
        80, 8192, 64, 28672, 32_000, 4096, "llama", key_value_heads=8, activation="swiglu", tied=False
    ),
    "llama-3.1-8b": TransformerSize(
        32, 4096, 32, 14336, 128_256, 8192, "llama", key_value_heads=8, activation="swiglu", tied=False
    ),
    "llama-3.1-70b": TransformerSize(
        80, 8192, 64, 28672, 128_256, 8192, "llama", key_value_heads=8, activation="swiglu", tied=False
    ),
}
"""Sizes by name."""


def counted_token_loss(logits: Tensor) -> Tensor:
    """Cross entropy of every position; the targets do not matter for counting."""
    tokens = logits.reshape(-1, logits.shape[-1])
    return functional.cross_entropy(tokens.float(), torch.zeros(tokens.shape[0], dtype=torch.long))


CONTEXT = 128
IMAGE_SHAPE = (3, 224, 224)
CLASSES = 1000


class Architecture(NamedTuple):
    """Model of the transformers library: its configuration class, model class and configuration values."""

    config: str
    model: str
    sizes: Mapping[str, int]
    shift: int = 0
    """Offset of the target in tokens: 1 to predict the next token, 0 to predict the token itself."""


LARGE_BERT = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
IMAGES = {"num_labels": CLASSES}

TEXT: dict[str, Architecture] = {
    "bert-base-uncased": Architecture("BertConfig", "BertForMaskedLM", {}),
    "bert-large-uncased": Architecture("BertConfig", "BertForMaskedLM", LARGE_BERT),
    "distilbert-base-uncased": Architecture("DistilBertConfig", "DistilBertForMaskedLM", {}),
    "roberta-base": Architecture("RobertaConfig", "RobertaForMaskedLM", ROBERTA),
    "gpt2": Architecture("GPT2Config", "GPT2LMHeadModel", {}, shift=1),
    "gpt2-medium": Architecture(
        "GPT2Config", "GPT2LMHeadModel", {"n_embd": 1024, "n_layer": 24, "n_head": 16}, shift=1
    ),
    "gpt2-large": Architecture("GPT2Config", "GPT2LMHeadModel", {"n_embd": 1280, "n_layer": 36, "n_head": 20}, shift=1),
    "gpt2-xl": Architecture("GPT2Config", "GPT2LMHeadModel", {"n_embd": 1600, "n_layer": 48, "n_head": 25}, shift=1),
}
IMAGE: dict[str, Architecture] = {
    "vit-base-patch16-224": Architecture("ViTConfig", "ViTForImageClassification", IMAGES),
    "vit-large-patch16-224": Architecture("ViTConfig", "ViTForImageClassification", {**IMAGES, **LARGE_BERT}),
    "resnet-50": Architecture("ResNetConfig", "ResNetForImageClassification", IMAGES),
}


def transformers_workload(text: str, options: Mapping[str, str]) -> Workload:
    """Build 'hf:gpt2' or 'hf:gpt2,context=256'; the owner in a hub name ('google/vit-base-patch16-224') is ignored."""
    words = [word for word, value in options.items() if value == "true"]
    if len(words) != 1:
        raise UserError(f"'{text}' must name one model, as in hf:gpt2; valid: {', '.join([*TEXT, *IMAGE])}")
    word = words[0].rpartition("/")[2]
    name = matching(word, [*TEXT, *IMAGE])
    others = {option: value for option, value in options.items() if option != words[0]}
    if name is None:
        raise unknown("transformers model", word, [*TEXT, *IMAGE])
    if importlib.util.find_spec("transformers") is None:
        raise UserError(f"'{text}' needs the transformers library: pip install transformers")
    if name in TEXT:
        return _text_workload(text, TEXT[name], _context(text, others))
    if others:
        raise UserError(f"'hf:{name}' has no options; '{next(iter(others))}' was given")
    return Workload(
        name=text,
        model=partial(transformers_model, IMAGE[name]),
        data=partial(load_generated, input_shape=IMAGE_SHAPE, classes=CLASSES),
        loss=classification_loss,
        accuracy=classification_accuracy,
        input_shape=IMAGE_SHAPE,
    )


def _text_workload(text: str, architecture: Architecture, context: int) -> Workload:
    config = _config(architecture)
    if context > config.max_position_embeddings:
        raise UserError(f"'{text}': context must be at most {config.max_position_embeddings}, not {context}")
    return Workload(
        name=text,
        model=partial(transformers_model, architecture),
        data=partial(load_tokens, context=context, vocabulary=config.vocab_size, shift=architecture.shift),
        loss=next_token_loss,
        accuracy=next_token_accuracy,
        input_shape=(context,),
        input_dtype=torch.int64,
        learning_rate=1e-4,
    )


def _context(text: str, options: Mapping[str, str]) -> int:
    for option in options:
        if option != "context":
            raise unknown(f"option of '{text}'", option, ["context"])
    value = options.get("context", str(CONTEXT))
    if not value.isdigit() or int(value) < 1:
        raise UserError(f"'{text}': context must be a whole number of at least 1, not '{value}'")
    return int(value)


def _config(architecture: Architecture) -> Any:
    return getattr(importlib.import_module("transformers"), architecture.config)(**architecture.sizes)


def transformers_model(architecture: Architecture) -> nn.Module:
    build: Callable[[Any], nn.Module] = getattr(importlib.import_module("transformers"), architecture.model)
    return Logits(build(_config(architecture)))


class Logits(nn.Module):
    """Wrapper that returns the logits as a single tensor, as a Workload's model must."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(inputs).logits
        return logits
