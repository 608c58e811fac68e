"""Seconds of a training step on one GPU, with the quality of the answer and its interval. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scalewise.hardware.gpus import Gpu
from scalewise.predict.gpu_model import (
    Execution,
    Family,
    GpuModel,
    Interval,
    OperatorTable,
    Quality,
    StepEstimate,
    gpu_constants,
    interval,
)
from scalewise.predict.operators import Operator, unknown_bytes_share, unknown_operators

HOST_UNKNOWN = 2.2
"""Interval of the host's time per call, as a factor up and down, if no step was measured on the machine."""

BIAS_KEPT: dict[Quality, float] = {"calibrated": 0.8, "scaled": 0.5}
"""Share of a measured step's error, in log space, that is corrected: the rest belongs to the measured model
(calibrated), or to the measured GPU and its host (scaled). Chosen on the published tables, in which full correction is
worse."""


@dataclass(frozen=True)
class StepPrediction:
    """Seconds of one step with a 90 % interval."""

    seconds: float
    low: float
    high: float
    quality: Quality
    gpu_seconds: float
    host_seconds: float
    unknown: tuple[str, ...]
    """Names of operators without a rule, which are counted by their bytes."""

    @property
    def host_bound(self) -> bool:
        return self.host_seconds > self.gpu_seconds


@dataclass(frozen=True)
class Calibration:
    """Correction of the GPU model for one device, from one measured step."""

    gpu_factor: float = 1.0
    """Correction of the predicted GPU seconds."""
    host_us: float | None = None
    """Host time per call if the host limited the measured step; None otherwise."""
    quality: Quality = "calibrated"


def family_of(operators: Sequence[Operator]) -> Family:
    """Return the family of models that determines the interval, by the kind of operator with the most flops."""
    flops = dict.fromkeys(("conv", "matmul", "attention", "recurrent"), 0.0)
    for operator in operators:
        if operator.kind in flops:
            flops[operator.kind] += operator.count * operator.flops
    largest = max(flops, key=lambda kind: flops[kind])
    if largest == "recurrent" or not flops[largest]:
        return "other"
    return "cnn" if largest == "conv" else "transformer"


def predict_step(
    operators: Sequence[Operator],
    gpu: Gpu,
    *,
    execution: Execution = "eager",
    calibration: Calibration | None = None,
    power_W: float | None = None,
) -> StepPrediction:
    """Predict one step from the specification, or from it and one measured step (`calibration`)."""
    calibration = calibration or Calibration(quality="specification")
    estimate = _estimate(operators, gpu, execution, power_W, calibration.host_us)
    estimate = replace(estimate, gpu_seconds=estimate.gpu_seconds * calibration.gpu_factor)
    precision = _main_precision(operators)
    limits = interval(
        calibration.quality,
        family_of(operators),
        precision,
        unknown_share=unknown_bytes_share(operators),
        host_share=estimate.host_share,
    )
    host_known = calibration.host_us is not None and calibration.quality == "calibrated"
    host = interval("calibrated", "host-bound", precision).high if host_known else HOST_UNKNOWN
    low, high = step_limits(estimate, limits, host)
    return StepPrediction(
        seconds=estimate.seconds,
        low=low,
        high=high,
        quality=calibration.quality,
        gpu_seconds=estimate.gpu_seconds,
        host_seconds=estimate.host_seconds,
        unknown=tuple(unknown_operators(operators)),
    )


def step_limits(estimate: StepEstimate, limits: Interval, host: float) -> tuple[float, float]:
    """90 % interval of a step in seconds: `limits` for the GPU's time, and a factor up and down for the host's."""
    return (
        max(estimate.gpu_seconds * limits.low, estimate.host_seconds / host),
        max(estimate.gpu_seconds * limits.high, estimate.host_seconds * host),
    )


def calibrate(
    operators: Sequence[Operator],
    gpu: Gpu,
    measured_seconds: float,
    *,
    execution: Execution = "eager",
    power_W: float | None = None,
    quality: Quality = "calibrated",
) -> Calibration:
    """Calibration from one measured step of any model on this device, or of the same model on another (scaled).

    A step whose predicted GPU time is less than half of what was measured is taken as bound by the host.
    """
    estimate = _estimate(operators, gpu, execution, power_W, None)
    if execution == "eager" and estimate.gpu_seconds < measured_seconds / 2:
        calls = GpuModel(gpu, gpu_constants()).host_calls(OperatorTable.of(operators))
        return Calibration(host_us=measured_seconds / calls * 1e6, quality=quality)
    return Calibration((measured_seconds / estimate.gpu_seconds) ** BIAS_KEPT[quality], quality=quality)


def scale_from(
    operators: Sequence[Operator],
    measured_on: Gpu,
    measured_seconds: float,
    gpu: Gpu,
    *,
    execution: Execution = "eager",
) -> StepPrediction:
    """Predict the same step on another GPU: the predicted seconds, with half of the error of the measured step.

    A measured step that the host limits says nothing about the GPU; the host of the other GPU is taken to be as fast.
    """
    calibration = calibrate(operators, measured_on, measured_seconds, execution=execution, quality="scaled")
    return predict_step(operators, gpu, execution=execution, calibration=calibration)


def _estimate(
    operators: Sequence[Operator], gpu: Gpu, execution: Execution, power_W: float | None, host_us: float | None
) -> StepEstimate:
    return GpuModel(gpu, gpu_constants(), power_W).step(OperatorTable.of(operators), execution, host_us)


def _main_precision(operators: Sequence[Operator]) -> str:
    """Precision in which most of the arithmetic is done."""
    flops: dict[str, float] = {}
    for operator in operators:
        flops[operator.precision] = flops.get(operator.precision, 0.0) + operator.count * operator.flops
    return max(flops, key=lambda precision: flops[precision], default="fp32")
