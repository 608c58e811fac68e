"""Compute time of a device that was measured together with its siblings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.formats.profile import InStep, StepCost
from scalewise.hardware.catalogue import cluster_of
from scalewise.predict.network import Layout
from scalewise.predict.predictor import Predictor
from scalewise.published.stevens import stevens_profile
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
def test_times_measured_together_take_precedence_over_general_factors(devices: int, seconds: float) -> None:
    """One device as profiled; two as measured together; four, not measured together, three times as long as one."""
    predicted = Predictor(PROFILE, SLICES).predict(strategy_of("mirrored"), devices, 10 * devices)
    assert predicted.phases["forward"] == pytest.approx(seconds, rel=1e-3)


@pytest.mark.parametrize(("devices", "seconds"), [(1, 0.1), (2, 0.3), (3, 0.7)])
def test_times_measured_on_several_hosts_count_for_these_hosts_only(devices: int, seconds: float) -> None:
    """Three devices as measured on three hosts; two, not measured together on two hosts, as one of each host."""
    entries = (*PROFILE.in_step, InStep(devices=3, hosts=3, steps=(step(0.7),)))
    hosts = cluster_of("1 x gtx-1080-ti, 4 hosts, 10gbe")
    predictor = Predictor(PROFILE.model_copy(update={"in_step": entries}), hosts)
    predicted = predictor.predict(strategy_of("mirrored"), devices, 10 * devices)
    assert predicted.phases["forward"] == pytest.approx(seconds, rel=1e-3)


def test_devices_that_take_turns_use_the_times_of_one_device() -> None:
    seconds = Predictor(PROFILE, SLICES)._device.among(Layout((2,)), strategy_of("layers"), frozenset({"forward"}))
    assert seconds("forward", 10) == 0.3


def test_updates_in_host_memory_use_its_bandwidth() -> None:
    seconds = Predictor(PROFILE, SLICES)._device.among(Layout((2,)), strategy_of("central-storage"))
    assert seconds("update", 10) == pytest.approx(7 * PROFILE.parameter_bytes / 20e9)
    assert seconds("forward", 10) == 0.5
