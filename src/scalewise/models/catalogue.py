"""Catalogue of the built-in workloads; checks of names and options without torch."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from scalewise.core.errors import UserError
from scalewise.core.specs import Spec, matching, parse_spec, unknown

OptionValue = int | float | str


class Entry(NamedTuple):
    """Built-in workload, built by `build(name, **options)` of its module."""

    module: str
    summary: str
    options: Mapping[str, tuple[OptionValue, str]] = {}
    """Option -> (default, description); values are parsed as the type of the default."""
    presets: Mapping[str, Mapping[str, OptionValue]] = {}
    """Word that stands for several options; options that are given explicitly override it."""


CATALOGUE: dict[str, Entry] = {
    "linear": Entry(
        "scalewise.models.spoken_digits",
        "the study's linear model on spoken digits: 12.1 M parameters, little compute",
    ),
    "conv": Entry(
        "scalewise.models.spoken_digits",
        "the study's convolutional model on spoken digits: 0.38 M parameters, much compute",
    ),
    "unet": Entry(
        "scalewise.models.unet",
        "U-Net that segments shapes in images: an encoder-decoder with skip connections",
        {
            "width": (8, "channels of the first level, doubled at every further level"),
            "depth": (3, "number of times that the image size is halved"),
            "norm": ("none", "normalisation: none, or batch for batch norm"),
            "size": (64, "height and width of the images in pixels"),
        },
        {"full": {"width": 64, "depth": 4, "size": 256}},
    ),
    "transformer": Entry(
        "scalewise.models.transformer",
        "a small decoder-only language model on bytes of text",
        {
            "layers": (4, "blocks of attention and feed-forward layers"),
            "width": (128, "features per token"),
            "heads": (4, "attention heads; the width must be a multiple of them"),
            "context": (128, "bytes per sample"),
            "vocabulary": (256, "rows of the embedding table; bytes need 256"),
        },
    ),
    "synthetic": Entry(
        "scalewise.models.synthetic",
        "a model of any size with any amount of compute: parameters and flops are independent",
        {
            "parameters": (1_000_000, "number of parameters, within 1 %"),
            "flops": (10_000_000, "forward flops per sample, within 1 %; a multiply-add counts as two"),
            "layers": (8, "number of linear layers"),
        },
    ),
}


PUBLISHED: dict[str, str] = {
    **dict.fromkeys(
        [
            "alexnet",
            "vgg11",
            "vgg13",
            "vgg16",
            "vgg19",
            "vgg11_bn",
            "vgg13_bn",
            "vgg16_bn",
            "vgg19_bn",
            "resnet18",
            "resnet34",
            "resnet50",
            "resnet101",
            "resnet152",
            "resnext50_32x4d",
            "resnext101_32x8d",
            "wide_resnet50_2",
            "wide_resnet101_2",
            "densenet121",
            "densenet161",
            "densenet169",
            "densenet201",
            "mobilenet_v2",
            "mnasnet0_5",
            "mnasnet0_75",
            "mnasnet1_0",
            "mnasnet1_3",
            "shufflenet_v2_x0_5",
            "shufflenet_v2_x1_0",
            "shufflenet_v2_x1_5",
            "shufflenet_v2_x2_0",
            "squeezenet1_0",
            "squeezenet1_1",
        ],
        "image classifier with 1,000 classes on 224 x 224 pixels",
    ),
    "bert_base": "BERT base, 512 tokens",
    "bert_large": "BERT large, 512 tokens",
    "gpt2": "GPT-2 with 124 million parameters, 1,024 tokens",
    "gpt2_large": "GPT-2 with 774 million parameters, 1,024 tokens",
    "llama-2-7b": "Llama 2 with 7 billion parameters, 4,096 tokens",
    "llama-2-70b": "Llama 2 with 70 billion parameters, 4,096 tokens",
    "llama-3.1-8b": "Llama 3.1 with 8 billion parameters, 8,192 tokens",
    "llama-3.1-70b": "Llama 3.1 with 70 billion parameters, 8,192 tokens",
}
"""Published models by name, each with a summary. They train on generated inputs."""


def named(text: str) -> str:
    """Return the listed spelling of a built-in workload or published model; return other text unchanged.

    Examples: 'vgg16' -> 'VGG16', 'UNet:full' -> 'unet:full'.
    """
    from scalewise.published.tables import OUTLINES  # imports pydantic, which is slow to load

    head, colon, _ = text.partition(":")
    head = head.strip()
    runnable = [*CATALOGUE, *PUBLISHED]
    name = matching(head, [*runnable, *OUTLINES]) or matching(head, runnable)
    if name is None or name == head or (colon and name not in CATALOGUE):
        return text
    return str(Spec(name, parse_spec(text).options)) if colon else name


HOW_TO_NAME_CODE = "write path/to/file.py:function or package.module:function"


def check_name(text: str, input_shape: str | None = None, classes: int | None = None) -> None:
    """Raise the UserError of `resolve`, as far as it can be known before torch and the user's code are imported."""
    if is_built_in(text):
        spec = built_in_spec(text, input_shape, classes)
        if spec.name in CATALOGUE:
            read_options(spec, CATALOGUE[spec.name])
        return
    parse_shape(input_shape)
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise UserError(f"'{text}' names no function; {HOW_TO_NAME_CODE}")
    if place.endswith(".py") or "/" in place:
        check_file(place)


def is_built_in(text: str) -> bool:
    """Whether the text names a built-in workload, a published model or a model of transformers, or nothing at all."""
    name = text.partition(":")[0]
    return name in CATALOGUE or name.lower() == "hf" or not _is_user_code(text)


def _is_user_code(text: str) -> bool:
    """Return whether the text names user code.

    These are 'file.py', 'file.py:function', 'package.module', 'package.module:function', and 'module:function' if the
    module exists.
    """
    place, _, function = text.rpartition(":")
    place = place or function
    if place.endswith(".py") or "/" in place:
        return True
    if not re.fullmatch(r"\w+(\.\w+)*", place):
        return False
    return "." in place or (place != text and function.isidentifier() and _is_importable(place))


def built_in_spec(text: str, input_shape: str | None, classes: int | None) -> Spec:
    """Return name and options of a workload that can be run; raise UserError for any other text."""
    from scalewise.published.tables import OUTLINES  # imports pydantic, which is slow to load

    colon = ":" in text
    text = named(text)
    if text in OUTLINES:
        runnable = matching(text, [*CATALOGUE, *PUBLISHED])
        instead = f"run '{runnable}', or predict it" if runnable else "advise can predict it"
        raise UserError(
            f"{text} cannot be run, because only its outline is known; {instead} from one measured step: "
            f"scalewise advise {quote(text)} --step-time 0.062@32 --cluster 8x-v100-nvlink"
        )
    if input_shape is not None or classes is not None:
        raise UserError(
            f"--input and --classes are for your own nn.Module; '{text}' defines its input shape and classes"
        )
    spec = parse_spec(text)
    if spec.name in PUBLISHED and spec.options:
        raise UserError(f"'{spec.name}' has no options; '{next(iter(spec.options))}' was given")
    if spec.name not in CATALOGUE and spec.name not in PUBLISHED and spec.name.lower() != "hf":
        valid = [
            *CATALOGUE,
            "a published model (see `scalewise list workloads`)",
            "hf:NAME",
            "path/to/file.py:function",
            "package.module:function",
        ]
        raise unknown("workload", text if colon else spec.name, valid)
    return spec


def check_file(place: str) -> None:
    if not Path(place).is_file():
        raise UserError(f"no such file: {place}")


def add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _is_importable(module: str) -> bool:
    add_to_path(Path.cwd())
    return importlib.util.find_spec(module) is not None


def read_options(spec: Spec, entry: Entry) -> dict[str, OptionValue]:
    """Return all options of a workload: defaults, overridden by presets, overridden by the options given."""
    values = {option: default for option, (default, _) in entry.options.items()}
    for word in spec.options:
        if word in entry.presets and spec.options[word] == "true":
            values.update(entry.presets[word])
    for option, text in spec.options.items():
        if option in entry.options:
            values[option] = _parse_option(spec, option, text, entry.options[option][0])
        elif option not in entry.presets or text != "true":
            if not entry.options:
                raise UserError(f"'{spec.name}' has no options; '{option}' was given")
            raise unknown(f"option of '{spec.name}'", option, [*entry.options, *entry.presets])
    return values


def _parse_option(spec: Spec, option: str, text: str, default: OptionValue) -> OptionValue:
    if isinstance(default, str):
        return text
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not number.is_integer():
        raise UserError(f"option {option} of '{spec}' must be a whole number like {default}, not '{text}'")
    # An integer that is written out keeps digits that a float would lose.
    return int(text) if text.lstrip("+-").isdigit() else int(number)


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
        raise UserError(f"--input must be sizes like 3x224x224, without the batch, not '{text}'")
    return tuple(int(size) for size in text.split("x"))
