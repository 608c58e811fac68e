"""The built-in workloads, as data: listing them and answering misspelt names needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

OptionValue = int | float | str


class Entry(NamedTuple):
    """One built-in workload. `build(name, **options)` of its module makes it."""

    module: str
    summary: str
    options: Mapping[str, tuple[OptionValue, str]] = {}
    """option -> (default, meaning); a value is read as the type of its default."""
    presets: Mapping[str, Mapping[str, OptionValue]] = {}
    """A bare word that stands for several options; options written beside it win."""


CATALOGUE: dict[str, Entry] = {
    "linear": Entry(
        "scalewise.workloads.linear",
        "the study's linear model on spoken digits: 12.1 M parameters, little to compute",
    ),
    "conv": Entry(
        "scalewise.workloads.conv",
        "the study's convolutional model on spoken digits: 0.38 M parameters, much to compute",
    ),
    "unet": Entry(
        "scalewise.workloads.unet",
        "U-Net: finds shapes in images, an encoder-decoder with skip connections",
        {
            "width": (8, "channels of the first level, doubled at each next one"),
            "depth": (3, "how many times the image is halved"),
            "norm": ("none", "none, or batch for batch normalisation"),
            "size": (64, "height and width of the images in pixels"),
        },
        {"full": {"width": 64, "depth": 4, "size": 256}},
    ),
    "transformer": Entry(
        "scalewise.workloads.transformer",
        "a small decoder-only language model on bytes of text",
        {
            "layers": (4, "blocks of attention and feed-forward layers"),
            "width": (128, "numbers per position"),
            "heads": (4, "attention heads; they divide the width"),
            "context": (128, "bytes per sample"),
            "vocabulary": (256, "rows of the embedding table; bytes need 256"),
        },
    ),
    "synthetic": Entry(
        "scalewise.workloads.synthetic",
        "any model size with any amount of compute: parameters and flops are set independently",
        {
            "parameters": (1_000_000, "trained numbers, met within 1 %"),
            "flops": (10_000_000, "forward flops per sample, met within 1 %; a multiply-add counts two"),
            "layers": (8, "linear layers that the compute is spread over"),
        },
    ),
}
