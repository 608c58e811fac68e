"""This machine measured as a cluster: what is timed on real ranks, and what is made of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scalewise.clusters.cluster import Cluster
from scalewise.clusters.read import read_cluster
from scalewise.collectives.collective import Collective
from scalewise.collectives.ring import PIECE_MB
from scalewise.errors import UserError
from scalewise.linking import operations
from scalewise.linking.beside import Beside
from scalewise.linking.kernels import Pace
from scalewise.linking.seen import Seen, cluster_of_seen, fit_operation
from scalewise.linking.sharing import Together, two_at_once
from scalewise.session.placement import Placement
from scalewise.simulation.layout import packed
from scalewise.simulation.network import Network
from scalewise.simulation.price import collective_seconds, link_bytes
from scalewise.verbs import links
from tests.conftest import SessionOf

SIZES = [1024 * 4**power for power in range(9)]
PACE = Pace(0.05, 12.0, 6.0, 2.0)


def points(operation: str, devices: int, latency: float, GBps: float) -> list[tuple[int, float]]:
    name = "all_reduce" if operation == "ring" else operation
    return [(size, latency + link_bytes(name, devices, size) / (GBps * 1e9)) for size in SIZES]


def seen(hosts: int = 1, beside: Beside | None = None) -> Seen:
    made = [
        fitted
        for operation, GBps in (("send", 1.5), ("all_reduce", 0.8), ("ring", 0.9))
        for fitted in fit_operation(operation, 2, hosts, points(operation, 2, 200e-6, GBps))
    ]
    return Seen(
        "a core",
        8.0,
        made,
        [],
        Together(1.9, 1.6),
        beside,
        PACE,
        replace(PACE, memory_GBps=8.0),
        5.0,
        0.0,
        False,
        None,
        "now",
    )


def seconds(cluster: Cluster, collective: Collective) -> float:
    return collective_seconds(collective, Network(cluster, packed(cluster, 2)))


def test_what_was_measured_is_what_is_priced() -> None:
    cluster = cluster_of_seen(Placement(2, "cpu"), seen())
    assert seconds(cluster, Collective("all_reduce", "gloo", 2, 10**7)) == pytest.approx(200e-6 + 1e7 / 0.8e9, rel=1e-3)
    ring = Collective("all_reduce", "gloo", 2, 10**7, piece_MB=PIECE_MB)
    assert seconds(cluster, ring) == pytest.approx(200e-6 + 1e7 / 0.9e9, rel=1e-3)
    path = Network(cluster, packed(cluster, 2)).path(0, 1, sockets=True, bytes=10**7)
    assert path.seconds_per_byte == pytest.approx(1 / 1.5e9, rel=1e-3)


def test_transfers_in_each_others_way_share_a_channel() -> None:
    [memory, sockets] = cluster_of_seen(Placement(2, "cpu"), seen()).links
    assert (memory.between, memory.GBps) == ("host-device", 5.0)
    assert (sockets.between, sockets.shared) == ("devices", True)
    apart = replace(seen(), together=Together(1.1, 2.9))
    assert not cluster_of_seen(Placement(2, "cpu"), apart).links[1].shared


@pytest.mark.parametrize(("devices", "shared"), [(2, False), (4, True)])
def test_both_ways_of_a_slice_meet_in_its_process(devices: int, shared: bool) -> None:
    """Of two slices nothing else can be told; four show whether pairs are in each other's way."""
    link = cluster_of_seen(Placement(devices, "slice"), seen()).link("devices")
    assert link is not None
    assert (link.shared, link.both_ways_GBps) == (shared, 1.6)


def test_measured_over_hosts_holds_over_hosts() -> None:
    cluster = cluster_of_seen(Placement(2, "cpu", hosts=2, link="1gbit"), seen(hosts=2))
    assert [(link.between, link.kind) for link in cluster.links] == [("host-device", "memory"), ("hosts", "1gbit")]
    assert (cluster.hosts, cluster.devices_per_host, cluster.servers_apart) == (2, 1, True)
    assert seconds(cluster, Collective("all_reduce", "gloo", 2, 10**7)) == pytest.approx(200e-6 + 1e7 / 0.8e9, rel=1e-3)


def test_what_sockets_take_from_a_core_is_counted_by_the_byte() -> None:
    beside = Beside(alone_seconds=1.0, seconds=1.5, reduced=10, bytes=16 * 2**20, reduce_seconds=0.05)
    [device] = cluster_of_seen(Placement(2, "cpu"), seen(beside=beside)).devices
    # Between two ranks each sends the tensor once and receives it once.
    assert device.copy_GBps == pytest.approx(2 * 16 * 2**20 / 0.05 / 1e9, rel=1e-3)
    assert device.beside_memory == pytest.approx(1.5)


def test_every_operation_is_timed_on_ranks(session_of: SessionOf) -> None:
    first, second = session_of(2).run(operations.time_operations, 2, links.OPERATIONS, 1e-4, (1024, 4096))
    assert [(each.operation, each.bytes) for each in first] == [
        (name, size) for name in links.OPERATIONS for size in (1024, 4096)
    ]
    assert [len(each.spans) for each in first] == [len(each.spans) for each in second]
    assert all(start < end for each in first for start, end in each.spans)


def test_a_call_lasts_from_the_last_start_to_the_last_end() -> None:
    early = operations.Timed("send", 4, [(0.0, 1.5), (10.0, 10.5), (20.0, 23.0)])
    late = operations.Timed("send", 4, [(1.0, 2.0), (10.1, 11.1), (20.0, 22.0)])
    assert operations.seconds_of([early, late]) == pytest.approx(1.0)


def test_ranks_beyond_the_count_take_no_part(session_of: SessionOf) -> None:
    *taking_part, other = session_of(3).run(operations.time_operations, 2, ("broadcast",), 1e-4, (1024, 4096))
    assert [len(found) for found in taking_part] == [2, 2]
    assert other == []


def test_ranks_agree_how_transfers_share(session_of: SessionOf) -> None:
    first, second = session_of(2).run(two_at_once, 2**20)
    assert first == second
    assert first.over_alone > 0
    assert first.both_ways_GBps > 0


def test_this_machine_becomes_a_file_that_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "OPERATIONS", ("send", "all_reduce"))
    path = tmp_path / "here.toml"
    heard: list[object] = []
    here = links.measure_links(2, device_kind="cpu", quick=True, save=path, on_progress=heard.append)
    read = read_cluster(path)
    assert (read.name, read.size, read.backend, read.knowledge) == ("here-2x-cpu", 2, "gloo", "measured")
    assert {each.operation for each in read.measured} == {"send", "all_reduce"}
    assert "all_reduce over 2 of 2 devices" in heard
    assert f"written to {path}" in str(here.report)
    assert "no NVIDIA GPU here" in str(here.report)


def test_devices_are_shared_out_evenly_over_hosts() -> None:
    with pytest.raises(UserError, match="3 devices cannot be shared out evenly over 2 hosts"):
        links.measure_links(3, device_kind="cpu", hosts=2, link="1gbit")
