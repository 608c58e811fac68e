"""What a predicted step is said to be held up by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.clusters.catalogue import cluster_of
from scalewise.clusters.cluster import Cluster, Device, Link
from scalewise.phases import BETWEEN_DEVICES
from scalewise.prediction.predict import Predictor
from scalewise.published.stevens import stevens_profile
from scalewise.results.profile import StepCost
from scalewise.strategies.registry import strategy_of

BOX = cluster_of("4x-gtx-1080-ti")
COMPUTE = ("forward", "loss", "backward", "update")


def two_cores(GBps: float) -> Predictor:
    """The linear model on cores that share their memory; its steps take about as long at any batch."""
    device = Device("one core of X", 2, 8.0, 0.05, 8.0, 0.0, None, 1.1, 1.9)
    links = (Link("devices", "sockets", GBps, 50.0), Link("host-device", "memory", 5.0, 0.0))
    cluster = Cluster("two-cores", 1, 2, (device,), links, backend="gloo", knowledge="measured")
    steps = tuple(
        StepCost(batch=batch, forward=0.008, backward=0.0105, update=0.008, load=0.0001 * batch)
        for batch in (5, 10, 20)
    )
    return Predictor(stevens_profile("linear").model_copy(update={"steps": steps}), cluster)


@pytest.mark.parametrize("strategy", ["mirrored", "ring"])
def test_compute_that_communication_slows_is_no_launching(strategy: str) -> None:
    predictor = two_cores(1.1)
    spread = predictor.predict(strategy_of(strategy), 2, 20)
    computing = sum(spread.phases.get(phase, 0.0) for phase in COMPUTE)
    assert computing > sum(spread.phases.get(phase, 0.0) for phase in BETWEEN_DEVICES)
    assert spread.seconds > 2 * predictor.predict(strategy_of("single"), 1, 20).seconds
    assert spread.bottleneck == "network"


def test_launching_stays_launching_beside_a_network_that_costs_little() -> None:
    fast = replace(BOX, links=tuple(replace(link, GBps=10_000.0, latency_us=0.1) for link in BOX.links))
    assert Predictor(stevens_profile("conv"), fast).predict(strategy_of("mirrored"), 4, 16).bottleneck == "launch"


@pytest.mark.parametrize("devices", [2, 4])
def test_a_servers_update_is_waited_for_not_sent(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalewise.simulation.network.SOCKET_GBps", 1000.0)
    fast = replace(BOX, links=tuple(replace(link, GBps=1000 * link.GBps) for link in BOX.links))
    server = Predictor(stevens_profile("linear"), fast).predict(strategy_of("parameter-server"), devices, 100)
    assert server.seconds > 0.03
    assert server.bottleneck == "idle"
    assert "forward" in server.phases  # those of a worker, at any number of them
