"""Published models in outline: parameters and shares of compute, part by part, as their papers and code define them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scalewise.results.profile import LayerCost, ProfileDocument, StepCost

Part = tuple[float, float]
"""Millions of parameters, and part of the forward flops; from the input to the output."""

OUTLINES: dict[str, tuple[Part, ...]] = {
    "AlexNet": ((2.5, 0.92), (58.6, 0.08)),
    "VGG16": ((14.7, 0.99), (123.6, 0.01)),
    "InceptionV3": ((21.8, 0.99), (2.0, 0.01)),
    "ResNet-18": ((0.16, 0.3), (0.53, 0.23), (2.1, 0.23), (8.4, 0.24)),
    "ResNet-50": ((0.23, 0.2), (1.2, 0.25), (7.1, 0.36), (15.0, 0.19), (2.05, 0.0)),
    "ResNet-101": ((0.23, 0.1), (1.2, 0.13), (26.1, 0.66), (15.0, 0.11), (2.05, 0.0)),
    "ResNet-152": ((0.23, 0.07), (2.5, 0.17), (40.4, 0.69), (15.0, 0.07), (2.05, 0.0)),
    "ResNeXt-50 32x4d": ((0.21, 0.2), (1.2, 0.25), (7.0, 0.36), (14.5, 0.19), (2.05, 0.0)),
    "ResNeXt-101 32x8d": ((0.47, 0.1), (2.4, 0.13), (52.0, 0.66), (31.9, 0.11), (2.05, 0.0)),
    "BERT base": ((23.8, 0.0), (85.1, 0.98), (0.6, 0.02)),
    "GPT-2": ((39.4, 0.0), (85.1, 1.0)),
    "DeepSpeech2": ((1.0, 0.2), (53.0, 0.78), (1.0, 0.02)),
    "YOLOv3": ((40.6, 0.6), (21.3, 0.4)),
    "NCF": ((1.5, 0.0), (0.1, 1.0)),
    "U-Net": ((2.3, 0.25), (16.5, 0.25), (10.0, 0.25), (2.2, 0.25)),
}
LAYERS = {
    "AlexNet": 8, "VGG16": 16, "InceptionV3": 189, "ResNet-18": 41, "ResNet-50": 107, "ResNet-101": 209,
    "ResNet-152": 311, "ResNeXt-50 32x4d": 107, "ResNeXt-101 32x8d": 209, "BERT base": 101, "GPT-2": 75,
    "DeepSpeech2": 12, "YOLOv3": 147, "NCF": 8, "U-Net": 23,
}  # fmt: skip
"""That have parameters, norms included."""


@dataclass(frozen=True)
class Sample:
    """What one sample weighs, and what the layers keep of it for backward: each convolution's output, and the norm's
    after it, with activations in place; counted from the definition at the size of the paper or its code."""

    shape: str
    input_bytes: int
    kept_MB: float


_IMAGE = "3x224x224", 4 * 3 * 224 * 224
SAMPLES = {
    "AlexNet": Sample(*_IMAGE, 2.4),
    "VGG16": Sample(*_IMAGE, 60.4),
    "InceptionV3": Sample("3x299x299", 4 * 3 * 299 * 299, 83.5),
    "ResNet-18": Sample(*_IMAGE, 20.0),
    "ResNet-50": Sample(*_IMAGE, 83.7),
    "ResNet-101": Sample(*_IMAGE, 124.6),
    "ResNet-152": Sample(*_IMAGE, 175.2),
    "ResNeXt-50 32x4d": Sample(*_IMAGE, 110.0),
    "ResNeXt-101 32x8d": Sample(*_IMAGE, 244.5),
    "YOLOv3": Sample("3x416x416", 4 * 3 * 416 * 416, 318.2),
}
"""Not of those whose samples have no usual size: text, speech, and the U-Net."""
TENSOR_MILLIONS = 2.4
"""Parts are cut into tensors of at most so many parameters, so that they fill buckets as real ones do."""
FORWARD_SHARE = 1 / 3


def outlined_profile(model: str, device: str, step_seconds: Mapping[int, float]) -> ProfileDocument:
    """Someone's one-device figures, by the batch, as a profile; shares of compute come from the outline."""
    layers: list[LayerCost] = []
    for number, (millions, share) in enumerate(OUTLINES[model]):
        count = max(1, round(millions / TENSOR_MILLIONS))
        for piece in range(count):
            layers.append(
                LayerCost(
                    name=f"part {number + 1}.{piece + 1}",
                    parameter_bytes=round(4e6 * millions / count),
                    activation_bytes=0,
                    flops=round(1e9 * share / count),
                )
            )
    return ProfileDocument(
        workload=model,
        device=device,
        execution="eager",
        samples_per_epoch=max(step_seconds),
        parameter_bytes=sum(layer.parameter_bytes for layer in layers),
        layers=tuple(layers),
        steps=tuple(
            StepCost(
                batch=batch, forward=seconds * FORWARD_SHARE, backward=seconds * (1 - FORWARD_SHARE), update=0, load=0
            )
            for batch, seconds in sorted(step_seconds.items())
        ),
    )
