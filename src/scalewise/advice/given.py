"""Someone's published seconds of one step, as a profile: shares of compute come from the layers' flops."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scalewise.errors import UserError
from scalewise.results.profile import LayerCost, ProfileDocument, StepCost

STEP_TIME = re.compile(r"([0-9.]+(?:e-?[0-9]+)?)\s*@\s*([0-9]+)")
FORWARD_SHARE = 1 / 3
"""Backward computes two products for each of forward's."""


def step_time_of(text: str) -> tuple[float, int]:
    """'0.062@32' -> (0.062 seconds, batch 32)."""
    match = STEP_TIME.fullmatch(text.strip())
    try:
        seconds, batch = (float(match[1]), int(match[2])) if match else (0.0, 0)
    except ValueError:
        seconds, batch = 0.0, 0
    if seconds <= 0 or batch < 1:
        raise UserError(f"--step-time is '{text}'; write SECONDS@BATCH, as in 0.062@32")
    return seconds, batch


def given_profile(
    workload: str, device: str, step_time: tuple[float, int], layers: Sequence[LayerCost], input_bytes: int
) -> ProfileDocument:
    """An epoch is one step, unless told otherwise."""
    seconds, batch = step_time
    forward = seconds * FORWARD_SHARE
    return ProfileDocument(
        workload=workload,
        device=device,
        execution="eager",
        samples_per_epoch=batch,
        parameter_bytes=sum(layer.parameter_bytes for layer in layers),
        input_bytes=input_bytes,
        layers=tuple(layers),
        steps=(StepCost(batch=batch, forward=forward, backward=seconds - forward, update=0, load=0),),
    )
