"""Someone's published seconds of one step, as a profile: shares of compute come from the layers' flops."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict

from scalewise.clusters.cluster import Device
from scalewise.errors import UserError
from scalewise.prediction.footprint import done_by_flops, footprint_of
from scalewise.published.models import LAYERS, SAMPLES, outlined_profile
from scalewise.results.profile import LayerCost, ProfileDocument, StepCost

STEP_TIME = re.compile(r"([0-9.]+(?:e-?[0-9]+)?)\s*@\s*([0-9]+)")
FORWARD_SHARE = 1 / 3
"""Backward computes two products for each of forward's."""
CALLS, CALLS_PER_LAYER, PASSES = 150, 30, 10
"""That a device is asked for in an eager step, and how often it goes through the weights: once forward, twice backward,
seven times for Adam. Chosen by looking at the linear model, whose steps take the same at every batch: 4.0 ms on a GTX
1080 Ti (estimated: 3.7), 1.65 ms on an H200 (1.2)."""


def step_time_of(text: str) -> tuple[float, int]:
    """'0.062@32' -> (0.062 seconds, batch 32)."""
    match = STEP_TIME.fullmatch(text.strip())
    try:
        seconds, batch = (float(match[1]), int(match[2])) if match else (0.0, 0)
    except ValueError:
        seconds, batch = 0.0, 0
    if not 0 < seconds < math.inf or batch < 1:
        raise UserError(f"--step-time is '{text}'; write SECONDS@BATCH, as in 0.062@32")
    return seconds, batch


def least_seconds(device: Device, layers: int, parameter_bytes: int) -> float:
    """Estimated, of a step with next to no samples: launching its work, and going through the weights."""
    launching = (CALLS + CALLS_PER_LAYER * layers) * device.launch_us * 1e-6
    return launching + PASSES * parameter_bytes / (device.memory_GBps * 1e9)


def given_profile(outline: ProfileDocument, device: Device, step_time: tuple[float, int]) -> ProfileDocument:
    """Of a model that is counted layer by layer."""
    seconds, batch = step_time
    forward = seconds * FORWARD_SHARE
    trained = sum(layer.parameter_bytes > 0 for layer in outline.layers)
    ready = ready_by_flops(footprint_of(outline).parameter_names, outline.layers)
    step = StepCost(batch=batch, forward=forward, backward=seconds - forward, update=0, load=0, ready=ready)
    return outline.model_copy(
        update={
            "device": device.name,
            "samples_per_epoch": batch,
            "epoch_told": False,
            "least_seconds": least_seconds(device, trained, outline.parameter_bytes),
            "steps": (step,),
        }
    )


def ready_by_flops(names: Sequence[str], layers: Sequence[LayerCost]) -> tuple[float, ...]:
    """Part of backward after which each parameter's gradient is there: when its layer is done."""
    ends = {layer.name: done for layer, done in done_by_flops(layers)}
    return tuple(ends.get(name.rpartition(".")[0], 1.0) for name in names) if ends else ()


def published_profile(model: str, device: Device, step_time: tuple[float, int]) -> ProfileDocument:
    """Of a model that is known in outline. What its layers keep is shared out by their flops, which is enough to tell
    whether all of it fits, and not what one passes to the next."""
    seconds, batch = step_time
    outline = outlined_profile(model, device.name, {batch: seconds})
    outline = outline.model_copy(
        update={
            "least_seconds": least_seconds(device, LAYERS[model], outline.parameter_bytes),
            "epoch_told": False,
        }
    )
    sample = SAMPLES.get(model)
    if sample is None:
        return outline
    footprint = footprint_of(outline)
    whole = sum(layer.flops for layer in outline.layers)
    return outline.model_copy(
        update={
            "layers": tuple(
                layer.model_copy(update={"activation_bytes": round(1e6 * sample.kept_MB * layer.flops / whole)})
                for layer in outline.layers
            ),
            "steps": tuple(step.model_copy(update={"ready": footprint.ready}) for step in outline.steps),
            "footprint": {**asdict(footprint), "input_bytes": sample.input_bytes},
            "input_bytes": sample.input_bytes,
        }
    )
