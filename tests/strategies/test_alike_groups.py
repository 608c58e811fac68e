"""Groups of devices that are alike, planned and priced once."""

from __future__ import annotations

from dataclasses import replace
from time import process_time

import pytest

from scalewise.clusters.catalogue import cluster_of
from scalewise.clusters.cluster import Cluster, Measured
from scalewise.collectives.collective import Collective
from scalewise.plan import Footprint, Matrix, Section
from scalewise.simulation.conduct import DDP
from scalewise.simulation.layout import packed
from scalewise.simulation.network import Network
from scalewise.simulation.simulate import Simulator
from scalewise.strategies.hybrid import Hybrid
from scalewise.strategies.strategy import Backend

LAYERS, WIDTH = 24, 4096
A100 = "8 x a100-nvlink, {} hosts, infiniband-200"


def footprint() -> Footprint:
    """Pairs of matrices, the first cut by columns, the second by rows; or stages of some pairs."""
    made: list[Matrix] = []
    size, flops = 4 * WIDTH, 2 * WIDTH * WIDTH
    for layer in range(LAYERS):
        made += [
            Matrix(f"{layer}.in", "columns", str(layer), WIDTH, WIDTH, 1, layer, size, 0, True, flops),
            Matrix(f"{layer}.out", "rows", str(layer), WIDTH, WIDTH, 1, -1 - layer, 0, size, True, flops),
        ]
    names = tuple(f"{matrix.name}.weight" for matrix in reversed(made))
    sections = tuple(
        Section(str(layer), 2 * flops, 8 * WIDTH * WIDTH, 2 * size, (size,), (size,)) for layer in range(LAYERS)
    )
    weights = (4 * WIDTH * WIDTH,) * len(made)
    return Footprint(weights, 4, 4, 4, parameter_names=names, matrices=tuple(made), sections=sections)


def seconds(phase: str, samples: int) -> float:
    return {"forward": 0.01, "backward": 0.02}.get(phase, 0.0) * samples


def bridged(text: str) -> Cluster:
    """The same with devices that share the bridge of their host."""
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
def test_the_first_groups_take_what_all_of_them_do_one_by_one(strategy: Hybrid, cluster: Cluster) -> None:
    first, every = (step_seconds(strategy, cluster, 32, first_only) for first_only in (True, False))
    assert first == pytest.approx(every, rel=1e-9)


@pytest.mark.parametrize("strategy", [Hybrid(tensor=2), Hybrid(stages=8)])
def test_thousands_of_devices_cost_no_more_than_a_few(strategy: Hybrid) -> None:
    begun = process_time()
    few = step_seconds(strategy, cluster_of(A100.format(4)), 32, first_only=True)
    middle = process_time()
    many = step_seconds(strategy, cluster_of(A100.format(512)), 4096, first_only=True)
    assert process_time() - middle < 4 * (middle - begun) + 0.2
    assert many > few
    model = footprint()
    plans = [strategy.plan_first(model, devices, 4 * devices, "nccl", followed=16) for devices in (32, 4096)]
    assert len(plans[0].operations) == len(plans[1].operations)


def test_groups_side_by_side_share_the_ports_of_their_hosts() -> None:
    cluster = cluster_of("8 x a100-nvlink, 4 hosts, infiniband-200")
    network = Network(cluster, packed(cluster, 32))
    link = cluster.link("hosts")
    assert link is not None
    assert (_GBps(network, 2), _GBps(network, 8)) == pytest.approx((link.GBps / 2, link.GBps / 8))


def _GBps(network: Network, stride: int) -> float:
    link = network.among(network.layout.workers // stride, stride).cluster.link("hosts")
    assert link is not None
    return link.GBps


def test_a_strided_collective_is_priced_between_those_ranks() -> None:
    cluster = cluster_of("8 x a100-nvlink, 4 hosts, infiniband-200")
    simulator = Simulator(Network(cluster, packed(cluster, 32)), DDP)
    near = simulator.price(Collective("all_reduce", "nccl", 8, 10**9))
    far = simulator.price(Collective("all_reduce", "nccl", 4, 10**9, stride=8))
    assert far > 10 * near


def test_groups_on_one_host_share_its_bridge() -> None:
    cluster = bridged("4x-gtx-1080-ti")
    simulator = Simulator(Network(cluster, packed(cluster, 4)), DDP)
    alone, beside = (simulator.price(Collective("all_reduce", "nccl", 2, 10**9, groups=groups)) for groups in (1, 2))
    assert beside == pytest.approx(2 * alone, rel=0.01)


def test_what_was_measured_of_an_operation_holds_for_groups_of_that_size() -> None:
    """Inside a host, whatever the number of hosts; and across, where devices of two groups are on one host."""
    measured = Measured("all_reduce", "nccl", devices=2, GBps=1.0, latency_us=3000)
    cluster = replace(cluster_of(A100.format(2)), measured=(measured,))
    expected = pytest.approx(3e-3 + 1.0)
    two_hosts = Simulator(Network(cluster, packed(cluster, 16)), DDP)
    assert two_hosts.price(Collective("all_reduce", "nccl", 2, 10**9, groups=8)) == expected
    one_host = Simulator(Network(cluster, packed(cluster, 8)), DDP)
    assert one_host.price(Collective("all_reduce", "nccl", 2, 10**9, stride=4)) == expected
