"""The study of E. Stevens (2020) as profiles and as measurements."""

from __future__ import annotations

from functools import cache
from statistics import linear_regression

from scalewise.formats.profile import LayerCost, ProfileDocument, StepCost
from scalewise.formats.store import Environment, Measurement
from scalewise.formats.train_result import BytesPerStep
from scalewise.published.tables import STEVENS, load_stevens

CLIPS = 2_000
CLIP_BYTES = 48_000
"""12,000 samples of 4 bytes."""
FORWARD_SHARE = 1 / 3
"""Forward's share of compute: backward computes two matrix products for each one in forward."""


def _layer(name: str, parameters: int, outputs: int, flops: int) -> LayerCost:
    return LayerCost(name=name, parameter_bytes=4 * parameters, activation_bytes=4 * outputs, flops=flops)


def _linear(name: str, inputs: int, outputs: int) -> LayerCost:
    return _layer(name, inputs * outputs + outputs, outputs, 2 * inputs * outputs)


def _conv(name: str, channels: int, outputs: int, kernel: int, length: int) -> LayerCost:
    products = channels * outputs * kernel
    return _layer(name, products + outputs, outputs * length, 2 * products * length)


STUDY_MODELS: dict[str, tuple[LayerCost, ...]] = {
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
"""Layers of the study's models, from its figures 1 and 2."""


@cache
def stevens_profile(workload: str) -> ProfileDocument:
    """Return the study's one-GPU column as a profile.

    The time of an epoch, less the time of loading, is divided by its steps; the last step may have a smaller batch.
    """
    load = load_seconds_per_clip()
    steps: list[StepCost] = []
    seconds: dict[int, float] = {}
    for batch, epoch_seconds in sorted(_one_gpu_cells(workload), key=lambda cell: cell[0]):
        full_steps, rest = divmod(CLIPS, batch)
        last = _interpolate(seconds, rest) if rest else 0.0
        seconds[batch] = step = (epoch_seconds - load * CLIPS - last) / full_steps
        steps.append(
            StepCost(
                batch=batch,
                forward=step * FORWARD_SHARE,
                backward=step * (1 - FORWARD_SHARE),
                update=0.0,
                load=load * batch,
            )
        )
    layers = STUDY_MODELS[workload]
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
    """Return the time of reading one wav file.

    A step of the linear model takes the same time at every batch, so its epoch time is linear in the number of steps.
    The intercept is the time of loading.
    """
    cells = _one_gpu_cells("linear")
    line = linear_regression([-(-CLIPS // batch) for batch, _ in cells], [seconds for _, seconds in cells])
    return line.intercept / CLIPS


def _one_gpu_cells(workload: str) -> list[tuple[int, float]]:
    """Return the batches and epoch times of the study's one-GPU cells."""
    return [(row.batch, row.epoch_seconds) for row in load_stevens() if row.workload == workload and row.devices == 1]


def _interpolate(seconds: dict[int, float], batch: int) -> float:
    """Return the time of a step between two batches of `seconds`, or of the nearest one."""
    smaller = max(size for size in seconds if size <= batch)
    larger = min((size for size in seconds if size >= batch), default=smaller)
    if larger == smaller:
        return seconds[smaller]
    weight = (batch - smaller) / (larger - smaller)
    return seconds[smaller] * (1 - weight) + seconds[larger] * weight


STEVENS_PARAMETERS = {"linear": 12_102_220, "conv": 376_200}
"""Number of parameters as given in the study, of four bytes each."""


def stevens_environment() -> Environment:
    return Environment(
        hardware={"gpus": ["GTX 1080 Ti"] * 4, "cpu": "unnamed"},
        data="the study's 2,000 spoken digits, every clip read from its wav file in every epoch",
        samples_per_epoch=2_000,
        conditions={"source": STEVENS.citation, "load": "files"},
    )


def stevens_measurements() -> list[Measurement]:
    """Return the study's 96 cells. Bytes are the study's count: per link, the model one way, its gradients back."""
    environment = stevens_environment().id
    return [
        Measurement(
            workload=row.workload,
            strategy="data-parallel",
            options={"engine": "threads"},
            devices=row.devices,
            device_kind="cuda",
            batch=row.batch,
            batch_per_device=-(-row.batch // row.devices),
            optimizer="adam",
            protocol="paper",
            execution="eager",
            epoch_seconds=row.epoch_seconds,
            bytes_per_step=_bytes_per_step(row.workload, row.devices),
            environment=environment,
            started=str(STEVENS.year),
        )
        for row in load_stevens()
    ]


def _bytes_per_step(workload: str, devices: int) -> BytesPerStep:
    link_bytes = 2 * 4 * STEVENS_PARAMETERS[workload]
    return BytesPerStep(planned=link_bytes * (devices - 1), traced=None, busiest=link_bytes if devices > 1 else 0)
