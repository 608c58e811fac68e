"""'hf:NAME': architectures of the transformers library, built from their sizes with random weights, offline."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from scalewise.data.generated import load_generated, load_tokens
from scalewise.errors import UserError
from scalewise.spec import unknown
from scalewise.workloads.classification import classification_accuracy, classification_loss
from scalewise.workloads.transformer import next_token_accuracy, next_token_loss
from scalewise.workloads.workload import Workload

CONTEXT = 128
IMAGE_SHAPE = (3, 224, 224)
CLASSES = 1000


class Architecture(NamedTuple):
    """A configuration class of transformers, the model class on top, and the sizes that make it this one."""

    config: str
    model: str
    sizes: Mapping[str, int]
    shift: int = 0
    """Tokens between an input and its target: 1 predicts the next token, 0 the token itself."""


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


def zoo_workload(text: str, options: Mapping[str, str]) -> Workload:
    """'hf:gpt2' or 'hf:gpt2,context=256'; a hub name's owner ('google/vit-base-patch16-224') may stay in front."""
    words = [word for word, value in options.items() if value == "true"]
    if len(words) != 1:
        raise UserError(f"'{text}' must name one model, as in hf:gpt2; valid: {', '.join([*TEXT, *IMAGE])}")
    name = words[0].rpartition("/")[2]
    others = {option: value for option, value in options.items() if option != words[0]}
    if name not in TEXT and name not in IMAGE:
        raise unknown("model of the zoo", name, [*TEXT, *IMAGE])
    if importlib.util.find_spec("transformers") is None:
        raise UserError(f"'{text}' needs the transformers library: pip install 'scalewise[zoo]'")
    if name in TEXT:
        return _text_workload(text, TEXT[name], _context(text, others))
    if others:
        raise UserError(f"'hf:{name}' has no options; '{next(iter(others))}' was given")
    return Workload(
        name=text,
        model=partial(zoo_model, IMAGE[name]),
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
        model=partial(zoo_model, architecture),
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
        raise UserError(f"'{text}': context must be a whole number from 1, not '{value}'")
    return int(value)


def _config(architecture: Architecture) -> Any:
    return getattr(importlib.import_module("transformers"), architecture.config)(**architecture.sizes)


def zoo_model(architecture: Architecture) -> nn.Module:
    build: Callable[[Any], nn.Module] = getattr(importlib.import_module("transformers"), architecture.model)
    return Logits(build(_config(architecture)))


class Logits(nn.Module):
    """Takes one tensor and gives one, as a Workload's model does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(inputs).logits
        return logits
