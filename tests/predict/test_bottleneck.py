"""Bottleneck of a predicted step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.core.timeline import BETWEEN_DEVICES
from scalewise.formats.profile import LayerCost, ProfileDocument, StepCost
from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.cluster import Cluster, Device, Link
from scalewise.predict.predictor import Prediction, Predictor
from scalewise.published.stevens import stevens_profile
from scalewise.strategies.registry import strategy_of

BOX = cluster_of("4x-gtx-1080-ti")
COMPUTE = ("forward", "loss", "backward", "update")


def two_cores(GBps: float) -> Predictor:
    """The linear model on two cores that share memory; its steps take about the same time at any batch."""
    device = Device("one core of X", 2, 8.0, 0.05, 8.0, 0.0, None, 1.1, 1.9)
    links = (Link("devices", "sockets", GBps, 50.0), Link("host-device", "memory", 5.0, 0.0))
    cluster = Cluster("two-cores", 1, 2, (device,), links, backend="gloo", knowledge="measured")
    steps = tuple(
        StepCost(batch=batch, forward=0.008, backward=0.0105, update=0.008, load=0.0001 * batch)
        for batch in (5, 10, 20)
    )
    return Predictor(stevens_profile("linear").model_copy(update={"steps": steps}), cluster)


@pytest.mark.parametrize("strategy", ["mirrored", "ring"])
def test_compute_slowed_by_communication_is_network_bound_not_launch_bound(strategy: str) -> None:
    predictor = two_cores(1.1)
    prediction = predictor.predict(strategy_of(strategy), 2, 20)
    computing = sum(prediction.phases.get(phase, 0.0) for phase in COMPUTE)
    assert computing > sum(prediction.phases.get(phase, 0.0) for phase in BETWEEN_DEVICES)
    assert prediction.seconds > 2 * predictor.predict(strategy_of("single"), 1, 20).seconds
    assert prediction.bottleneck == "network"


def test_a_launch_bound_step_with_a_fast_network_is_launch_bound() -> None:
    fast = replace(BOX, links=tuple(replace(link, GBps=10_000.0, latency_us=0.1) for link in BOX.links))
    assert Predictor(stevens_profile("conv"), fast).predict(strategy_of("mirrored"), 4, 16).bottleneck == "launch"


@pytest.mark.parametrize("devices", [2, 4])
def test_waiting_for_a_servers_update_is_idle_time(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalewise.predict.network.SOCKET_GBps", 1000.0)
    fast = replace(BOX, links=tuple(replace(link, GBps=1000 * link.GBps) for link in BOX.links))
    server = Predictor(stevens_profile("linear"), fast).predict(strategy_of("parameter-server"), devices, 100)
    assert server.seconds > 0.03
    assert server.bottleneck == "idle"
    assert "forward" in server.phases  # phases are those of workers


def two_device_step(parameter_bytes: int, GBps: float) -> Prediction:
    """Two devices that compute for 100 ms and all-reduce gradients of this size."""
    document = ProfileDocument(
        workload="x",
        device="X",
        execution="eager",
        samples_per_epoch=64,
        parameter_bytes=parameter_bytes,
        layers=(LayerCost(name="1", parameter_bytes=parameter_bytes, activation_bytes=0, flops=1),),
        steps=tuple(StepCost(batch=b, forward=b / 960, backward=b / 480, update=0, load=0) for b in (16, 32, 64)),
    )
    box = cluster_of("2 x rtx-3090")
    links = tuple(replace(link, GBps=GBps, both_ways_GBps=None, host_GBps=None) for link in box.links)
    return Predictor(document, replace(box, links=links)).predict(strategy_of("mirrored"), 2, 64)


def test_a_step_that_loses_most_to_communication_is_network_bound_though_compute_takes_longer() -> None:
    prediction = two_device_step(500_000_000, 7.0)
    assert 0.1 / prediction.seconds == pytest.approx(0.58, abs=0.04)  # efficiency
    assert prediction.bottleneck == "network"


@pytest.mark.parametrize("parameter_bytes", [4, 1_000, 100_000])
def test_a_step_that_sends_almost_nothing_takes_as_long_as_on_one_device(parameter_bytes: int) -> None:
    prediction = two_device_step(parameter_bytes, 12.0)
    assert prediction.seconds == pytest.approx(0.1, rel=0.01)
    assert prediction.bottleneck == "compute"


def test_the_slowdown_of_compute_grows_with_communication_up_to_a_limit() -> None:
    """On a link that hides nothing else, seconds of a step beyond compute and what is not hidden of the transfer."""
    seconds = [two_device_step(size, 12.0).seconds for size in (10**6, 2 * 10**6, 4 * 10**6, 10**8)]
    assert seconds == sorted(seconds)
    assert seconds[2] - seconds[1] > seconds[1] - seconds[0] > 0.0002
    assert seconds[3] < 0.1 * 1.05 + 1.01 * 10**8 / 12e9
