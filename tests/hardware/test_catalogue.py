"""Clusters of the catalogue and composed clusters."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.core.errors import UserError
from scalewise.hardware.catalogue import catalogue, cluster_of
from scalewise.hardware.cluster import cluster_text
from scalewise.hardware.collectives import Collective
from scalewise.predict.collective_seconds import collective_seconds, link_bytes
from scalewise.predict.network import Layout, Network, packed
from tests.hardware.test_cluster import PAIR


@pytest.mark.parametrize("name", catalogue())
def test_every_entry_has_a_name_a_summary_and_link_sources(name: str) -> None:
    cluster = catalogue()[name]
    assert name.startswith(f"{cluster.devices_per_host}x-")
    assert cluster.summary
    assert all(link.source for link in cluster.links)
    assert cluster.link("host-device") is not None


def test_machine_of_the_study_has_one_link_between_all_gpus() -> None:
    cluster = cluster_of("4x-gtx-1080-ti")
    assert (cluster.size, cluster.devices[0].name) == (4, "GTX 1080 Ti")
    assert cluster.link_between(0, 3) == cluster.link_between(1, 2)


def test_nvlink_bridges_connect_pairs_and_pcie_the_others() -> None:
    cluster = cluster_of("4x-rtx-3090-nvlink")
    kinds = [getattr(cluster.link_between(*pair), "kind", None) for pair in ((0, 1), (2, 3), (1, 2), (0, 3))]
    assert kinds == ["nvlink-bridge", "nvlink-bridge", "pcie4-through-host", "pcie4-through-host"]


def test_composed_cluster_has_hosts_network_and_price() -> None:
    cluster = cluster_of("8 x a100-nvlink, 4 hosts, 100gbe")
    assert (cluster.hosts, cluster.devices_per_host, cluster.size) == (4, 8, 32)
    network = cluster.link("hosts")
    assert network is not None
    assert (network.kind, network.GBps) == ("100gbe", 11.9)
    host_price = cluster_of("8x-a100-nvlink").price_per_hour
    assert host_price is not None
    assert cluster.price_per_hour == pytest.approx(4 * host_price)


def test_hosts_and_network_can_follow_a_catalogue_name() -> None:
    assert cluster_of("8x-a100-nvlink, 4 hosts, 100gbe") == cluster_of("8 x a100-nvlink, 4 hosts, 100gbe")


def test_price_of_the_v100_host_is_for_32_GB_gpus() -> None:
    """AWS also has a host with 16 GB GPUs, for 24.48."""
    cluster = cluster_of("8x-v100-nvlink")
    assert (cluster.devices[0].memory_GB, cluster.price_per_hour) == (32, 31.212)


def test_part_of_a_host_has_no_price() -> None:
    cluster = cluster_of("2 x a100-nvlink")
    assert (cluster.size, cluster.price_per_hour) == (2, None)


def test_cluster_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(PAIR)
    assert cluster_of(str(path)).name == "pair"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4x-gtx-1080", "unknown cluster '4x-gtx-1080' (did you mean '4x-gtx-1080-ti'?); valid: 8x-a100-nvlink"),
        ("4x-gtx", "3072x-tpu-v4, 8x-v100-nvlink, a composed name such as '8 x a100-nvlink, 4 hosts, 100gbe'"),
        ("8 x a100-nvlnk", "unknown device 'a100-nvlnk' (did you mean 'a100-nvlink'?)"),
        ("9 x a100-nvlink", "a host has 1 to 8 devices of a100-nvlink, not 9; add hosts"),
        ("4 x rtx-3090, 2 hosts", "the network between the hosts is missing"),
        ("4 x rtx-3090, 2 hosts, wifi", "unknown network in '4 x rtx-3090, 2 hosts, wifi': 'wifi'; valid: 1gbe, 10gbe"),
        ("4 x rtx-3090, 2 hosts, infiniband", "(did you mean 'infiniband-56' or 'infiniband-100' or 'infiniband-200'"),
        ("4 x rtx-3090, 0 hosts, 1gbe", "the number of hosts is 0; it must be 1 or more"),
    ],
)
def test_error_for_an_invalid_cluster(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        cluster_of(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("4X-GTX-1080-TI", "4x-gtx-1080-ti"),
        ("8 x A100-NVLink, 4 hosts, 100GbE", "8 x a100-nvlink, 4 hosts, 100gbe"),
        ("4x-rtx-3090, 2 hosts, InfiniBand 100", "4x-rtx-3090, 2 hosts, infiniband-100"),
    ],
)
def test_names_ignore_case(given: str, expected: str) -> None:
    assert cluster_of(given) == cluster_of(expected)


def test_a_consumer_card_copies_through_host_memory() -> None:
    cluster = cluster_of("4 x RTX-4090")
    link = cluster.link("devices")
    assert (cluster.size, cluster.devices[0].name, cluster.devices[0].memory_GB) == (4, "RTX 4090", 24)
    assert link is not None
    assert (link.both_ways_GBps, link.host_GBps) == (28.8, 24)
    assert "without peer-to-peer copies" in cluster.summary


def all_reduce_GBps(text: str, devices: int, bytes: int = 256 * 10**6) -> float:
    """Bus bandwidth of an all-reduce, as nccl-tests reports it."""
    network = Network(cluster_of(text), packed(cluster_of(text), devices))
    seconds = collective_seconds(Collective("all_reduce", "nccl", devices, bytes), network)
    return link_bytes("all_reduce", devices, bytes) / seconds / 1e9


def test_devices_that_copy_through_host_memory_share_its_copies() -> None:
    bandwidths = [all_reduce_GBps("8 x rtx-4090", devices) for devices in (2, 4, 8)]
    assert bandwidths == pytest.approx([12, 6, 3], rel=0.02)
    assert all_reduce_GBps("8 x rtx-4090, 2 sockets", 8) == pytest.approx(0.75 * 3, rel=0.02)
    assert all_reduce_GBps("8 x rtx-4090, p2p", 8) == pytest.approx(14.4, rel=0.02)  # what a 1080 Ti has, times two


def test_bridges_of_pairs_leave_the_host_only_the_copies_between_pairs() -> None:
    assert all_reduce_GBps("2 x rtx-3090, nvlink", 2) == pytest.approx(46, rel=0.02)
    assert all_reduce_GBps("4 x rtx-3090, nvlink", 4) == pytest.approx(2 * all_reduce_GBps("4 x rtx-3090", 4), rel=0.02)


def test_generation_of_pcie_and_boxes_larger_than_the_catalogue() -> None:
    assert all_reduce_GBps("2 x rtx-3090, pcie3", 2) == pytest.approx(7.2, rel=0.02)
    assert all_reduce_GBps("2 x rtx-5090", 2) == pytest.approx(28.8, rel=0.02)
    cluster = cluster_of("8 x rtx-3090-nvlink")
    assert (cluster.devices_per_host, cluster.name) == (8, "8 x rtx-3090, nvlink")
    assert cluster_of(cluster.name) == cluster


@pytest.mark.parametrize("text", ["4 x rtx-4090, nvlink", "3 x rtx-3090, nvlink", "4 x rtx-3090, pcie6"])
def test_options_that_a_host_cannot_have_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"nvlink|pcie"):
        cluster_of(text)


def test_nvlink_has_the_share_of_its_specification_that_the_catalogue_measured() -> None:
    link = cluster_of("8 x b200").link("devices")
    assert link is not None
    assert link.GBps == pytest.approx(0.41 * 1800)
    known = cluster_of("8x-h100-nvlink").link("devices")
    assert known is not None
    assert known.GBps == pytest.approx(0.41 * 900, rel=0.01)


def test_a_card_with_hbm_on_pcie_copies_peer_to_peer() -> None:
    link = cluster_of("2 x h100-pcie").link("devices")
    assert link is not None
    assert (link.kind, link.GBps) == ("pcie5", 48)


def test_hosts_and_networks_are_composed_as_for_boxes() -> None:
    cluster = cluster_of("8 x b200, 4 hosts, infiniband-400")
    assert (cluster.hosts, cluster.size) == (4, 32)
    network = cluster.link("hosts")
    assert network is not None
    assert network.GBps == 48


@pytest.mark.parametrize("text", ["9 x rtx-4090", "0 x l4", "2 x rtx-4091", "2 x l4, 2 hosts"])
def test_what_cannot_be_composed_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        cluster_of(text)


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("8 x h100-nvlink, 4 hosts, infiniband-400", 8),
        ("8 x b200, 4 hosts, infiniband-400", 8),
        ("8 x v100, 4 hosts, infiniband-100", 4),
        ("4 x h100-nvlink, 4 hosts", 4),
        ("8 x h100-nvlink, 4 hosts, 2 x infiniband-400", 2),
        ("8 x h100-nvlink, 4 hosts, 100gbe", 1),
        ("4 x l40s, 4 hosts, infiniband-100", 1),
    ],
)
def test_hosts_have_the_network_interfaces_of_their_kind_or_the_given_number(text: str, ports: int) -> None:
    cluster = cluster_of(text)
    network = cluster.link("hosts")
    assert network is not None
    assert network.ports == ports
    if "own" not in cluster.name:
        assert cluster_of(cluster.name).link("hosts") == network


def test_assumed_network_interfaces_are_stated() -> None:
    assumed = cluster_of("8 x h100-nvlink, 4 hosts, infiniband-400").summary
    assert assumed.endswith("assumed: 8 network interfaces of 48 GB/s per host, GPUDirect")
    assert "network interface" not in cluster_of("8 x h100-nvlink, 4 hosts, 8 x infiniband-400").summary


def test_an_all_reduce_uses_all_network_interfaces_of_a_host() -> None:
    assert all_reduce_GBps("8 x h100-nvlink, 2 hosts, 8 x infiniband-400", 16, 10**10) == pytest.approx(370, rel=0.02)
    assert all_reduce_GBps("8 x h100-nvlink, 2 hosts, 2 x infiniband-400", 16, 10**10) == pytest.approx(96, rel=0.02)
    assert all_reduce_GBps("8 x h100-nvlink, 2 hosts, 1 x infiniband-400", 16, 10**10) == pytest.approx(48, rel=0.02)


def test_devices_use_the_network_interfaces_close_to_them() -> None:
    cluster = cluster_of("8 x h100-nvlink, 2 hosts, 4 x infiniband-400")
    for per_host, GBps in ((1, 48), (2, 48), (4, 96), (8, 192)):
        path = Network(cluster, Layout((per_host, per_host))).path(0, per_host)
        assert 1e-9 / path.seconds_per_byte == pytest.approx(GBps)


def test_one_message_uses_one_network_interface() -> None:
    cluster = cluster_of("8 x h100-nvlink, 2 hosts, 8 x infiniband-100")
    message = Network(cluster, Layout((8, 8))).path(0, 8, alone=True)
    assert 1e-9 / message.seconds_per_byte == pytest.approx(12)


def test_without_gpudirect_messages_share_the_copies_through_host_memory() -> None:
    usual, without = (
        "8 x a100-nvlink, 2 hosts, 8 x infiniband-200",
        "8 x a100-nvlink, 2 hosts, 8 x infiniband-200, no gpudirect",
    )
    assert all_reduce_GBps(usual, 16, 10**10) == pytest.approx(192, rel=0.02)
    assert all_reduce_GBps(without, 16, 10**10) == pytest.approx(12, rel=0.02)  # out and in share 24 GB/s
    consumer = cluster_of("4 x rtx-4090, 2 hosts, infiniband-100")
    assert "no GPUDirect" in consumer.summary
    direct = cluster_of("4 x rtx-4090, 2 hosts, infiniband-100, gpudirect").link("hosts")
    assert direct is not None
    assert direct.host_GBps is None


def test_network_interfaces_are_written_to_a_file_and_read_from_it(tmp_path: Path) -> None:
    cluster = cluster_of("8 x a100-nvlink, 2 hosts, 4 x infiniband-200, no gpudirect")
    path = tmp_path / "mine.toml"
    path.write_text(cluster_text(cluster))
    assert cluster_of(str(path)).link("hosts") == cluster.link("hosts")


def test_a_host_has_a_limited_number_of_network_interfaces() -> None:
    with pytest.raises(UserError, match="1 to 16 network interfaces, not 99"):
        cluster_of("8 x h100, 2 hosts, 99 x infiniband-400")
