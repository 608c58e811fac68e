"""Slowdown of compute while other devices of the host are busy."""

from __future__ import annotations

import pytest

from scalewise.hardware.cluster import Device
from scalewise.predict.device_costs import lone_phases, slowdown
from scalewise.strategies.plan import Footprint, Section
from scalewise.strategies.registry import strategy_of

CORE = Device("core", 2, 8, 0.05, memory_GBps=10.0, launch_us=1, beside_compute=1.1, beside_memory=2.0)


def test_an_update_slows_down_like_memory() -> None:
    assert slowdown(CORE, 10**9, "update", 0.7) == pytest.approx(2.0)


def test_compute_on_few_parameters_slows_down_like_arithmetic() -> None:
    assert slowdown(CORE, 1000, "forward", 1.0) == pytest.approx(1.1, rel=1e-3)


def test_slowdown_is_weighted_by_the_time_of_memory_access() -> None:
    """A forward pass of 0.2 s spends half of its time reading 1 GB of weights."""
    assert slowdown(CORE, 10**9, "forward", 0.2) == pytest.approx((2.0 + 1.1) / 2)


def test_gpus_with_their_own_memory_do_not_slow_down() -> None:
    gpu = Device("card", 4, 11, 11.3, 484, 10)
    assert slowdown(gpu, 10**9, "backward", 0.1) == 1.0


def test_phases_on_a_single_device_are_lone() -> None:
    model = Footprint(parameter_bytes=(4000,), input_bytes=40, target_bytes=8, output_bytes=40)
    assert lone_phases(strategy_of("data-parallel").plan(model, 2, 8)) == {"load", "loss", "update"}
    assert lone_phases(strategy_of("parameter-server").plan(model, 2, 8)) == {"update"}
    assert lone_phases(strategy_of("parameter-server:servers=2").plan(model, 2, 8)) == frozenset()
    assert lone_phases(strategy_of("mirrored").plan(model, 3, 8)) == frozenset()


def test_passes_of_layers_are_lone_and_those_of_pipeline_are_not() -> None:
    sections = tuple(Section(name, 1000, 4000, 40, (40,), (40,)) for name in "ab")
    model = Footprint(parameter_bytes=(4000, 4000), input_bytes=40, target_bytes=8, output_bytes=40, sections=sections)
    assert lone_phases(strategy_of("layers").plan(model, 2, 8)) >= {"forward", "backward"}
    assert not lone_phases(strategy_of("pipeline").plan(model, 2, 8)) & {"forward", "backward"}
