"""Samples loaded by workers while the batch before is computed: what is longer counts."""

from __future__ import annotations

from scalewise.prediction.predict import Prediction, Predictor

WORKERS = 4
OPTION = f"--load stream:workers={WORKERS}"
LOADING = 0.05
"""The part of a step from which loading is worth more workers."""


def loaded_beside(predictor: Predictor, made: Prediction) -> float | None:
    """Seconds of the step with so many workers for each device; None where loading is next to nothing."""
    loading = made.phases.get("load", 0.0)
    if loading < LOADING * made.seconds:
        return None
    steps = tuple(step.model_copy(update={"load": 0.0}) for step in predictor.profile.steps)
    without = Predictor(predictor.profile.model_copy(update={"steps": steps}), predictor.cluster)
    return max(without.simulate(made.strategy, made.devices, made.batch).step_seconds, loading / WORKERS)
