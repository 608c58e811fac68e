"""Any configuration of the installed transformers library, or a local config.json: `hf:llama,hidden_size=512`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from scalewise.core.errors import UserError
from scalewise.core.specs import matching, unknown
from scalewise.data.dataset import load_generated, load_tokens
from scalewise.models.example_inputs import example_workload
from scalewise.models.published_transformers import CONTEXT, IMAGE, TEXT, Logits
from scalewise.models.transformer import next_token_accuracy, next_token_loss
from scalewise.models.workload import Workload, classification_accuracy, classification_loss

AUDIO_SAMPLES, AUDIO_FRAMES = 16_000, 3000
"""Samples of one second of audio, and frames of a 30-second spectrogram."""
KINDS = (
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "MODEL_FOR_MASKED_LM_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING",
    "MODEL_MAPPING",
)
"""Tasks of the library, in the order in which one is chosen for a configuration that names no model class."""


def configured_workload(text: str, source: str, options: Mapping[str, str]) -> Workload:
    """Build a model of a configuration, with random weights.

    `source`: a model type of the library ('llama'), or a config.json or the folder with it. `options`: values of the
    configuration, and `context`, the tokens per sample.
    """
    changes = {name: _value(value) for name, value in options.items() if name != "context"}
    config = _configuration(text, source, changes)
    kind = _model_class(text, config)
    build = partial(_model, kind, config)
    name = config.model_type
    if options.get("context", "1") in ("", "0") or not options.get("context", "1").isdigit():
        raise UserError(f"'{text}': context must be a whole number of at least 1, not '{options['context']}'")
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    context = int(options.get("context", min(CONTEXT, limit or CONTEXT)))
    if limit and context > limit:
        raise UserError(f"'{text}': context must be at most {limit}, not {context}")
    inputs = kind.main_input_name
    if inputs == "pixel_values" and "ImageClassification" in kind.__name__:
        shape = (getattr(config, "num_channels", 3), *_image_size(config))
        return Workload(
            name=text,
            model=partial(_with_logits, build),
            data=partial(load_generated, input_shape=shape, classes=config.num_labels),
            loss=classification_loss,
            accuracy=classification_accuracy,
            input_shape=shape,
        )
    vocabulary = getattr(config.get_text_config(), "vocab_size", None)
    one_stack = not config.is_encoder_decoder and inputs == "input_ids"
    if (
        one_stack
        and vocabulary
        and ("CausalLM" in kind.__name__ or "LMHead" in kind.__name__ or "Masked" in kind.__name__)
    ):
        return Workload(
            name=text,
            model=partial(_with_logits, build),
            data=partial(
                load_tokens, context=context, vocabulary=vocabulary, shift=0 if "Masked" in kind.__name__ else 1
            ),
            loss=next_token_loss,
            accuracy=next_token_accuracy,
            input_shape=(context,),
            input_dtype=torch.int64,
            learning_rate=1e-4,
        )
    return example_workload(text, build, _example(text, name, inputs, config, context, kind))


def _configuration(text: str, source: str, changes: Mapping[str, Any]) -> Any:
    path = Path(source) / "config.json" if Path(source).is_dir() else Path(source)
    if path.is_file() or source.endswith(".json"):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            model_type = values.pop("model_type")
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, KeyError, AttributeError):
            raise UserError(f"{path} is not the config.json of a transformers model: it has no model_type") from None
        if model_type not in transformers.CONFIG_MAPPING:
            raise unknown(f"model_type in {path}:", model_type, [*transformers.CONFIG_MAPPING])
        values |= changes
    else:
        named = matching(source, [*transformers.CONFIG_MAPPING])
        if named is None:
            valid = [*TEXT, *IMAGE, "a config.json", "or a model type of the library", *transformers.CONFIG_MAPPING]
            raise unknown("transformers model", source.rpartition("/")[2], valid)
        model_type, values = named, dict(changes)
    of_any_model = transformers.PretrainedConfig().to_dict()
    known = transformers.CONFIG_MAPPING[model_type]().to_dict()
    for name in changes:
        if name not in known:
            raise unknown(f"option of '{text}'", name, ["context", *(key for key in known if key not in of_any_model)])
    try:
        config = transformers.CONFIG_MAPPING[model_type](**values)
    except Exception as error:  # the library checks values in many ways
        raise UserError(f"'{text}': {' '.join(str(error).split())[:200]}") from None
    if config.is_encoder_decoder:
        for token in ("decoder_start_token_id", "pad_token_id"):
            if getattr(config, token, None) is None:
                setattr(config, token, 0)
    return config


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _model_class(text: str, config: Any) -> Any:
    """Model class that the configuration names, else the one of the first task that has its kind."""
    for name in getattr(config, "architectures", None) or ():
        if kind := getattr(transformers, name, None):
            return kind
    for task in KINDS:
        if kind := getattr(transformers, task).get(type(config), None):
            return kind[0] if isinstance(kind, tuple) else kind
    raise UserError(f"'{text}': the library has no model for the configuration {type(config).__name__}")


def _model(kind: Any, config: Any) -> nn.Module:
    config.use_cache = False
    model: nn.Module = kind(config)
    return model


def _with_logits(build: Callable[[], nn.Module]) -> nn.Module:
    return Logits(build())


def _image_size(config: Any) -> tuple[int, int]:
    size = getattr(config, "image_size", 224)
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _example(text: str, name: str, inputs: str, config: Any, context: int, kind: Any) -> dict[str, Any]:
    """Keyword arguments of one sample, with labels if the model then computes its own loss."""
    ids = torch.zeros((1, context), dtype=torch.int64, device="meta")
    if inputs == "input_ids":
        example: dict[str, Any] = {"input_ids": ids}
    elif inputs == "pixel_values":
        shape = (1, getattr(config, "num_channels", 3), *_image_size(config))
        example = {"pixel_values": torch.zeros(shape, device="meta")}
    elif inputs == "input_values":
        example = {"input_values": torch.zeros((1, AUDIO_SAMPLES), device="meta")}
    elif inputs == "input_features" and hasattr(config, "num_mel_bins"):
        example = {"input_features": torch.zeros((1, config.num_mel_bins, AUDIO_FRAMES), device="meta")}
    else:
        raise UserError(
            f"'{text}': the inputs of {name} models are not known; write a function that returns (module, "
            "example_batch)"
        )
    if config.is_encoder_decoder:
        target = "labels" if "Conditional" in kind.__name__ or "LM" in kind.__name__ else "decoder_input_ids"
        example[target] = ids
    return example
