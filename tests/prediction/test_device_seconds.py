"""A phase on a device that was timed together with its siblings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.clusters.catalogue import cluster_of
from scalewise.prediction.predict import Predictor
from scalewise.published.stevens import stevens_profile
from scalewise.results.profile import InStep, StepCost
from scalewise.strategies.registry import strategy_of

BOX = cluster_of("4x-gtx-1080-ti")
SLICES = replace(BOX, backend="gloo", devices=(replace(BOX.devices[0], host_memory_GBps=20.0, beside_compute=3.0),))


def step(forward: float) -> StepCost:
    return StepCost(batch=10, forward=forward, backward=0.0, update=0.0, load=0.0)


PROFILE = stevens_profile("conv").model_copy(
    update={
        "steps": (step(0.1), step(0.2).model_copy(update={"batch": 20})),
        "in_step": (InStep(devices=1, steps=(step(0.3),)), InStep(devices=2, steps=(step(0.5),))),
    }
)


@pytest.mark.parametrize(("devices", "seconds"), [(1, 0.1), (2, 0.5), (4, 0.3)])
def test_what_was_timed_together_goes_before_what_any_work_takes_there(devices: int, seconds: float) -> None:
    """Alone as profiled; two as timed in step; four, which nobody timed, three times as long as alone."""
    predicted = Predictor(PROFILE, SLICES).predict(strategy_of("mirrored"), devices, 10 * devices)
    assert predicted.phases["forward"] == pytest.approx(seconds, rel=1e-3)


def test_devices_that_take_turns_are_told_what_to_do_one_by_one() -> None:
    seconds = Predictor(PROFILE, SLICES)._device.among(2, "layers", frozenset({"forward"}))
    assert seconds("forward", 10) == 0.3


def test_updates_in_host_memory_are_the_hosts() -> None:
    seconds = Predictor(PROFILE, SLICES)._device.among(2, "central-storage")
    assert seconds("update", 10) == pytest.approx(7 * PROFILE.parameter_bytes / 20e9)
    assert seconds("forward", 10) == 0.5
