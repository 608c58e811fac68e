"""Groups of devices that are alike, planned and priced once."""

from __future__ import annotations

from time import process_time

import pytest

from scalewise.clusters.catalogue import cluster_of
from scalewise.collectives.collective import Collective
from scalewise.plan import Footprint, Matrix
from scalewise.simulation.conduct import DDP
from scalewise.simulation.layout import packed
from scalewise.simulation.network import Network
from scalewise.simulation.simulate import Simulator
from scalewise.strategies.alike_groups import alike_groups_plan
from scalewise.strategies.hybrid import Hybrid
from scalewise.strategies.tensor import Tensor

LAYERS, WIDTH = 24, 4096


def footprint() -> Footprint:
    """Pairs of matrices, the first cut by columns, the second by rows."""
    made: list[Matrix] = []
    for layer in range(LAYERS):
        size, flops = 4 * WIDTH, 2 * WIDTH * WIDTH
        made += [
            Matrix(f"{layer}.in", "columns", str(layer), WIDTH, WIDTH, 1, layer, size, 0, True, flops),
            Matrix(f"{layer}.out", "rows", str(layer), WIDTH, WIDTH, 1, -1 - layer, 0, size, True, flops),
        ]
    names = tuple(f"{matrix.name}.weight" for matrix in reversed(made))
    return Footprint((4 * WIDTH * WIDTH,) * len(made), 4, 4, 4, parameter_names=names, matrices=tuple(made))


def seconds(phase: str, samples: int) -> float:
    return {"forward": 0.01, "backward": 0.02}.get(phase, 0.0) * samples


def step_seconds(devices: int, alike: bool) -> float:
    weights = footprint()
    hosts = devices // 8
    cluster = cluster_of("8 x a100-nvlink" + (f", {hosts} hosts, infiniband-200" if hosts > 1 else ""))
    if alike:
        cuts = Tensor().cuts(weights.matrices, 2)
        plan = alike_groups_plan(weights, cuts, devices, 2, 4 * devices, "nccl")
    else:
        plan = Hybrid(tensor=2).plan(weights, devices, 4 * devices, "nccl")
    return Simulator(Network(cluster, packed(cluster, devices)), DDP).simulate(plan, seconds).step_seconds


def test_one_group_takes_about_what_all_of_them_do_one_by_one() -> None:
    """Sends one by one meet each other on the links; a formula does not know the last of it."""
    assert step_seconds(8, alike=True) == pytest.approx(step_seconds(8, alike=False), rel=0.15)


def test_thousands_of_devices_cost_no_more_than_a_few() -> None:
    begun = process_time()
    few = step_seconds(16, alike=True)
    middle = process_time()
    many = step_seconds(4096, alike=True)
    assert process_time() - middle < 4 * (middle - begun) + 0.2
    assert many > few


def test_groups_side_by_side_share_the_ports_of_their_hosts() -> None:
    cluster = cluster_of("8 x a100-nvlink, 4 hosts, infiniband-200")
    network = Network(cluster, packed(cluster, 32))
    link = cluster.link("hosts")
    assert link is not None
    assert (_GBps(network, 2), _GBps(network, 8)) == pytest.approx((link.GBps / 2, link.GBps / 8))


def _GBps(network: Network, stride: int) -> float:
    link = network.strided(stride).cluster.link("hosts")
    assert link is not None
    return link.GBps


def test_a_strided_collective_is_priced_between_those_ranks() -> None:
    cluster = cluster_of("8 x a100-nvlink, 4 hosts, infiniband-200")
    simulator = Simulator(Network(cluster, packed(cluster, 32)), DDP)
    near = simulator.price(Collective("all_reduce", "nccl", 8, 10**9))
    far = simulator.price(Collective("all_reduce", "nccl", 4, 10**9, stride=8))
    assert far > 10 * near
