"""Equal groups of devices, planned and timed once."""

from __future__ import annotations

from dataclasses import replace
from time import process_time

import pytest

from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.cluster import Cluster, Measured
from scalewise.hardware.collectives import Backend, Collective
from scalewise.predict.network import Network, packed
from scalewise.predict.simulator import DDP, Simulator
from scalewise.strategies.hybrid import Hybrid
from scalewise.strategies.plan import Footprint, Section, SplittableLayer

LAYERS, WIDTH = 24, 4096
A100 = "8 x a100-nvlink, {} hosts, infiniband-200"


def footprint() -> Footprint:
    """Model of pairs of matrices, the first split by columns and the second by rows, and of sections of one pair."""
    matrices: list[SplittableLayer] = []
    size, flops = 4 * WIDTH, 2 * WIDTH * WIDTH
    for layer in range(LAYERS):
        matrices += [
            SplittableLayer(f"{layer}.in", "columns", str(layer), WIDTH, WIDTH, 1, layer, size, 0, True, flops),
            SplittableLayer(f"{layer}.out", "rows", str(layer), WIDTH, WIDTH, 1, -1 - layer, 0, size, True, flops),
        ]
    names = tuple(f"{matrix.name}.weight" for matrix in reversed(matrices))
    sections = tuple(
        Section(str(layer), 2 * flops, 8 * WIDTH * WIDTH, 2 * size, (size,), (size,)) for layer in range(LAYERS)
    )
    weights = (4 * WIDTH * WIDTH,) * len(matrices)
    return Footprint(weights, 4, 4, 4, parameter_names=names, matrices=tuple(matrices), sections=sections)


def seconds(phase: str, samples: int) -> float:
    return {"forward": 0.01, "backward": 0.02}.get(phase, 0.0) * samples


def bridged(text: str) -> Cluster:
    """Cluster whose devices share the bridge of their host."""
    cluster = cluster_of(text)
    return replace(cluster, links=tuple(replace(link, shared=True) for link in cluster.links))


def step_seconds(strategy: Hybrid, cluster: Cluster, devices: int, first_only: bool) -> float:
    backend: Backend = cluster.backend
    plan = (
        strategy.plan_first(footprint(), devices, 4 * devices, backend, followed=16)
        if first_only
        else strategy.plan(footprint(), devices, 4 * devices, backend)
    )
    return Simulator(Network(cluster, packed(cluster, devices)), DDP).simulate(plan, seconds).step_seconds


@pytest.mark.parametrize("strategy", [Hybrid(tensor=2), Hybrid(tensor=8), Hybrid(stages=2), Hybrid(stages=8)])
@pytest.mark.parametrize("cluster", [cluster_of(A100.format(4)), bridged("4 x t4, 8 hosts, 25gbe")], ids=["A100", "T4"])
def test_represented_groups_take_as_long_as_planned_ones(strategy: Hybrid, cluster: Cluster) -> None:
    represented, individual = (step_seconds(strategy, cluster, 32, first_only) for first_only in (True, False))
    assert represented == pytest.approx(individual, rel=1e-9)


@pytest.mark.parametrize("strategy", [Hybrid(tensor=2), Hybrid(stages=8)])
def test_simulating_thousands_of_devices_takes_no_longer_than_32(strategy: Hybrid) -> None:
    start = process_time()
    few = step_seconds(strategy, cluster_of(A100.format(4)), 32, first_only=True)
    middle = process_time()
    many = step_seconds(strategy, cluster_of(A100.format(512)), 4096, first_only=True)
    assert process_time() - middle < 4 * (middle - start) + 0.2
    assert many > few
    model = footprint()
    plans = [strategy.plan_first(model, devices, 4 * devices, "nccl", followed=16) for devices in (32, 4096)]
    assert len(plans[0].operations) == len(plans[1].operations)


def test_concurrent_collectives_share_the_ports_of_their_hosts() -> None:
    cluster = cluster_of("8 x a100-nvlink, 4 hosts, infiniband-200")
    network = Network(cluster, packed(cluster, 32))
    link = cluster.link("hosts")
    assert link is not None
    assert (_GBps(network, 2), _GBps(network, 8)) == pytest.approx((link.GBps / 2, link.GBps / 8))


def _GBps(network: Network, stride: int) -> float:
    link = network.among(network.layout.workers // stride, stride).cluster.link("hosts")
    assert link is not None
    return link.GBps


def test_a_strided_collective_uses_the_links_between_its_ranks() -> None:
    cluster = cluster_of("8 x a100-nvlink, 4 hosts, infiniband-200")
    simulator = Simulator(Network(cluster, packed(cluster, 32)), DDP)
    near = simulator.price(Collective("all_reduce", "nccl", 8, 10**9))
    far = simulator.price(Collective("all_reduce", "nccl", 4, 10**9, stride=8))
    assert near < 0.01
    # Every GPU of a host has a port of 25 GB/s, over which a ring of four hosts sends each byte 3/4 times twice.
    assert far == pytest.approx(2 * 3 / 4 * 10**9 / 25e9, rel=0.1)


def test_groups_on_one_host_share_its_bridge() -> None:
    cluster = bridged("4x-gtx-1080-ti")
    simulator = Simulator(Network(cluster, packed(cluster, 4)), DDP)
    alone, beside = (simulator.price(Collective("all_reduce", "nccl", 2, 10**9, groups=groups)) for groups in (1, 2))
    assert beside == pytest.approx(2 * alone, rel=0.01)


def test_a_measured_collective_applies_to_groups_of_that_size() -> None:
    """The measurement of two devices on a host applies to any number of hosts, and to strided groups on one host."""
    measured = Measured("all_reduce", "nccl", devices=2, GBps=1.0, latency_us=3000)
    cluster = replace(cluster_of(A100.format(2)), measured=(measured,))
    expected = pytest.approx(3e-3 + 1.0)
    two_hosts = Simulator(Network(cluster, packed(cluster, 16)), DDP)
    assert two_hosts.price(Collective("all_reduce", "nccl", 2, 10**9, groups=8)) == expected
    one_host = Simulator(Network(cluster, packed(cluster, 8)), DDP)
    assert one_host.price(Collective("all_reduce", "nccl", 2, 10**9, stride=4)) == expected
