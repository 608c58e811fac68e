"""Bytes that one device needs for a step."""

from __future__ import annotations

from scalewise.prediction.costs import Costs
from scalewise.results.profile import ProfileDocument
from scalewise.strategies.strategy import Strategy

MODEL_COPIES = 4
"""Weights, gradients and Adam's two moments."""
ACTIVATION_COPIES = 2
"""What every layer puts out, and its gradient."""
FLAT_COPIES = {"mirrored": 1, "ring": 1}
"""Gradients once more, in buckets."""


def memory_bytes(profile: ProfileDocument, costs: Costs, strategy: Strategy, batch_per_device: int) -> int:
    """From the profiled peaks, in a straight line through the batches; else counted from the layers."""
    extra = FLAT_COPIES.get(strategy.name, 0) * profile.parameter_bytes
    peaks = [(step.batch, step.peak_memory_bytes) for step in costs.steps if step.peak_memory_bytes]
    activations = ACTIVATION_COPIES * sum(layer.activation_bytes for layer in profile.layers)
    if not peaks:
        return MODEL_COPIES * profile.parameter_bytes + activations * batch_per_device + extra
    (first, low), (last, high) = peaks[0], peaks[-1]
    per_sample = (high - low) / (last - first) if last > first else activations
    return round(max(low + per_sample * (batch_per_device - first), MODEL_COPIES * profile.parameter_bytes)) + extra
