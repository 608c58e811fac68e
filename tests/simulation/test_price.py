"""What collectives cost: measured constants first, and formulas that agree with following every send."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.clusters.catalogue import cluster_of
from scalewise.clusters.cluster import Cluster
from scalewise.collectives.collective import Collective
from scalewise.simulation import price
from scalewise.simulation.layout import packed
from scalewise.simulation.network import Network

BIG = 256 * 10**6


def network(cluster: Cluster, devices: int) -> Network:
    return Network(cluster, packed(cluster, devices))


def test_a_measured_constant_takes_the_place_of_the_formula() -> None:
    seconds = price.collective_seconds(
        Collective("all_reduce", "nccl", 8, BIG), network(cluster_of("8x-a100-nvlink"), 8)
    )
    assert seconds == pytest.approx(75.7e-6 + BIG * 2 * 7 / 8 / 225.2e9)


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize(("box", "devices"), [("8 x p40", 8), ("4 x t4, 3 hosts", 12), ("4 x t4, 4 hosts", 16)])
def test_the_formula_agrees_with_following_every_send(box: str, devices: int, operation: str, backend: str) -> None:
    cluster = cluster_of(box)
    collective = Collective(operation, backend, devices, BIG)
    exact = price._send_by_send(collective, network(cluster, devices))
    assert price._by_formula(collective, network(cluster, devices)) == pytest.approx(exact, rel=0.06)


@pytest.mark.parametrize("operation", ["broadcast", "gather", "scatter"])
def test_so_do_the_rooted_ones_over_gloo(operation: str) -> None:
    cluster = replace(cluster_of("8x-p40"), backend="gloo")
    collective = Collective(operation, "gloo", 8, BIG)
    exact = price._send_by_send(collective, network(cluster, 8))
    assert price._by_formula(collective, network(cluster, 8)) == pytest.approx(exact, rel=0.06)


def test_few_bytes_over_many_hosts_go_by_trees() -> None:
    cluster = cluster_of("8 x a100-nvlink, 512 hosts, 100gbe")
    small = Collective("all_reduce", "nccl", 4096, 1000)
    ring = 2 * 4095 * 3.4e-6
    assert price.collective_seconds(small, network(cluster, 4096)) < ring / 10


def test_thousands_of_ranks_are_priced_by_their_different_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    path = Network.path
    monkeypatch.setattr(Network, "path", lambda self, *ends: asked.append(ends) or path(self, *ends))  # type: ignore[func-returns-value]
    cluster = cluster_of("8 x a100-nvlink, 512 hosts, 100gbe")
    price.collective_seconds(Collective("all_reduce", "nccl", 4096, BIG), network(cluster, 4096))
    assert len(asked) == 8


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_bytes_through_one_of_many_are_told_by_a_few(operation: str) -> None:
    collective = Collective(operation, "gloo", 48, BIG)
    every = 2 * sum(send.bytes for send in collective.sends) / 48
    assert price.bytes_through_rank(collective) == pytest.approx(every, rel=1e-3)
