"""The study's one-GPU columns as profiles of its two models."""

from __future__ import annotations

from functools import cache
from statistics import linear_regression

from scalewise.published.tables import load_stevens
from scalewise.results.profile import LayerCost, ProfileDocument, StepCost

CLIPS = 2_000
CLIP_BYTES = 48_000
"""12,000 samples of 4 bytes."""
FORWARD_SHARE = 1 / 3
"""Backward computes two products for each of forward's."""


def _layer(name: str, parameters: int, outputs: int, flops: int) -> LayerCost:
    return LayerCost(name=name, parameter_bytes=4 * parameters, activation_bytes=4 * outputs, flops=flops)


def _linear(name: str, inputs: int, outputs: int) -> LayerCost:
    return _layer(name, inputs * outputs + outputs, outputs, 2 * inputs * outputs)


def _conv(name: str, channels: int, outputs: int, kernel: int, length: int) -> LayerCost:
    products = channels * outputs * kernel
    return _layer(name, products + outputs, outputs * length, 2 * products * length)


MODELS: dict[str, tuple[LayerCost, ...]] = {
    "linear": (
        _linear("linear 1", 12_000, 1_000),
        _linear("linear 2", 1_000, 100),
        _linear("linear 3", 100, 10),
        _linear("linear 4", 10, 10),
    ),
    "conv": (
        _conv("convolution 1", 1, 50, 200, 12_001),
        _conv("convolution 2", 50, 30, 100, 3_001),
        _conv("convolution 3", 30, 10, 50, 1_001),
        _linear("linear 1", 2_000, 100),
        _linear("linear 2", 100, 10),
    ),
}
"""Its figures 1 and 2."""


@cache
def stevens_profile(workload: str) -> ProfileDocument:
    """Epochs less loading, shared out over their steps; the last step of an epoch may be a short one."""
    load = load_seconds_per_clip()
    steps: list[StepCost] = []
    seconds: dict[int, float] = {}
    for row in sorted(_alone(workload), key=lambda row: row[0]):
        batch, epoch_seconds = row
        full, rest = divmod(CLIPS, batch)
        last = _between(seconds, rest) if rest else 0.0
        seconds[batch] = step = (epoch_seconds - load * CLIPS - last) / full
        steps.append(
            StepCost(
                batch=batch,
                forward=step * FORWARD_SHARE,
                backward=step * (1 - FORWARD_SHARE),
                update=0.0,
                load=load * batch,
            )
        )
    layers = MODELS[workload]
    return ProfileDocument(
        workload=workload,
        device="GTX 1080 Ti",
        execution="eager",
        samples_per_epoch=CLIPS,
        parameter_bytes=sum(layer.parameter_bytes for layer in layers),
        input_bytes=CLIP_BYTES,
        layers=layers,
        steps=tuple(steps),
        data="E. Stevens 2020, one-GPU column",
    )


@cache
def load_seconds_per_clip() -> float:
    """Reading wav files: what is left of the linear model's epochs when there are no steps.

    Its step takes as long at any batch, so its epochs lie on a straight line over the number of steps.
    """
    cells = _alone("linear")
    line = linear_regression([-(-CLIPS // batch) for batch, _ in cells], [seconds for _, seconds in cells])
    return line.intercept / CLIPS


def _alone(workload: str) -> list[tuple[int, float]]:
    return [(row.batch, row.epoch_seconds) for row in load_stevens() if row.workload == workload and row.devices == 1]


def _between(seconds: dict[int, float], batch: int) -> float:
    """A short last step, from the smaller batches found before it."""
    smaller = max(size for size in seconds if size <= batch)
    larger = min((size for size in seconds if size >= batch), default=smaller)
    if larger == smaller:
        return seconds[smaller]
    part = (batch - smaller) / (larger - smaller)
    return seconds[smaller] * (1 - part) + seconds[larger] * part
