"""Time of collectives: measured constants first, then formulas that agree with the simulation of every send."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.cluster import Cluster
from scalewise.hardware.collectives import Collective
from scalewise.predict import collective_seconds
from scalewise.predict.network import Network, packed

BIG = 256 * 10**6


def network(cluster: Cluster, devices: int) -> Network:
    return Network(cluster, packed(cluster, devices))


def test_measured_constants_take_precedence_over_formulas() -> None:
    seconds = collective_seconds.collective_seconds(
        Collective("all_reduce", "nccl", 8, BIG), network(cluster_of("8x-a100-nvlink"), 8)
    )
    assert seconds == pytest.approx(75.7e-6 + BIG * 2 * 7 / 8 / 225.2e9)


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize(("box", "devices"), [("8 x p40", 8), ("4 x t4, 3 hosts", 12), ("4 x t4, 4 hosts", 16)])
def test_formulas_agree_with_the_simulation_of_every_send(box: str, devices: int, operation: str, backend: str) -> None:
    cluster = cluster_of(box)
    collective = Collective(operation, backend, devices, BIG)
    exact = collective_seconds._send_by_send(collective, network(cluster, devices))
    assert collective_seconds._by_formula(collective, network(cluster, devices)) == pytest.approx(exact, rel=0.06)


@pytest.mark.parametrize("operation", ["broadcast", "gather", "scatter"])
def test_formulas_of_rooted_collectives_agree_with_the_simulation_on_gloo(operation: str) -> None:
    cluster = replace(cluster_of("8x-p40"), backend="gloo")
    collective = Collective(operation, "gloo", 8, BIG)
    exact = collective_seconds._send_by_send(collective, network(cluster, 8))
    assert collective_seconds._by_formula(collective, network(cluster, 8)) == pytest.approx(exact, rel=0.06)


def test_small_all_reduces_over_many_hosts_use_trees() -> None:
    cluster = cluster_of("8 x a100-nvlink, 512 hosts, 100gbe")
    small = Collective("all_reduce", "nccl", 4096, 1000)
    ring = 2 * 4095 * 3.4e-6
    assert collective_seconds.collective_seconds(small, network(cluster, 4096)) < ring / 10


def test_thousands_of_ranks_are_timed_by_their_distinct_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[int, int]] = []
    path = Network.path
    monkeypatch.setattr(Network, "path", lambda self, *ends: requests.append(ends) or path(self, *ends))  # type: ignore[func-returns-value]
    cluster = cluster_of("8 x a100-nvlink, 512 hosts, 100gbe")
    collective_seconds.collective_seconds(Collective("all_reduce", "nccl", 4096, BIG), network(cluster, 4096))
    assert len(requests) == 8


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_bytes_through_a_rank_of_many_follow_from_a_few_ranks(operation: str) -> None:
    collective = Collective(operation, "gloo", 48, BIG)
    mean = 2 * sum(send.bytes for send in collective.sends) / 48
    assert collective_seconds.bytes_through_rank(collective) == pytest.approx(mean, rel=1e-3)
