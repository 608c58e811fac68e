"""The clusters that ship, and those composed of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.clusters.catalogue import catalogue, cluster_of
from scalewise.errors import UserError
from tests.clusters.test_read import PAIR


@pytest.mark.parametrize("name", catalogue())
def test_every_entry_is_named_after_its_devices_and_cites_its_links(name: str) -> None:
    cluster = catalogue()[name]
    assert name.startswith(f"{cluster.devices_per_host}x-")
    assert cluster.summary
    assert all(link.source for link in cluster.links)
    assert cluster.link("host-device") is not None


def test_the_studys_machine_has_its_cards_and_its_bridge() -> None:
    cluster = cluster_of("4x-gtx-1080-ti")
    assert (cluster.size, cluster.devices[0].name) == (4, "GTX 1080 Ti")
    assert cluster.link_between(0, 3) == cluster.link_between(1, 2)


def test_bridges_join_pairs_and_pcie_the_rest() -> None:
    cluster = cluster_of("4x-rtx-3090-nvlink")
    kinds = [getattr(cluster.link_between(*pair), "kind", None) for pair in ((0, 1), (2, 3), (1, 2), (0, 3))]
    assert kinds == ["nvlink-bridge", "nvlink-bridge", "pcie4-through-host", "pcie4-through-host"]


def test_boxes_and_a_network_make_a_cluster() -> None:
    cluster = cluster_of("8 x a100-nvlink, 4 hosts, 100gbe")
    assert (cluster.hosts, cluster.devices_per_host, cluster.size) == (4, 8, 32)
    between = cluster.link("hosts")
    assert between is not None
    assert (between.kind, between.GBps) == ("100gbe", 11.9)
    alone = cluster_of("8x-a100-nvlink").price_per_hour
    assert alone is not None
    assert cluster.price_per_hour == pytest.approx(4 * alone)


def test_hosts_and_a_network_may_follow_a_name_of_the_catalogue() -> None:
    assert cluster_of("8x-a100-nvlink, 4 hosts, 100gbe") == cluster_of("8 x a100-nvlink, 4 hosts, 100gbe")


def test_the_v100_box_costs_what_one_with_its_memory_does() -> None:
    """AWS rents out boxes of 16 GB cards, too, for 24.48."""
    box = cluster_of("8x-v100-nvlink")
    assert (box.devices[0].memory_GB, box.price_per_hour) == (32, 31.212)


def test_part_of_a_box_has_no_price_of_its_own() -> None:
    cluster = cluster_of("2 x a100-nvlink")
    assert (cluster.size, cluster.price_per_hour) == (2, None)


def test_a_file_of_ones_own_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(PAIR)
    assert cluster_of(str(path)).name == "pair"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("4x-gtx-1080", "unknown cluster '4x-gtx-1080' (did you mean '4x-gtx-1080-ti'?); valid: 8x-a100-nvlink"),
        ("4x-gtx", "3072x-tpu-v4, 8x-v100-nvlink, one composed as in '8 x a100-nvlink, 4 hosts, 100gbe'"),
        ("8 x a100-nvlnk", "unknown box 'a100-nvlnk' (did you mean 'a100-nvlink'?)"),
        ("9 x a100-nvlink", "a box of a100-nvlink holds 1 to 8 devices, not 9"),
        ("4 x rtx-3090, 2 hosts", "name the network between the hosts"),
        ("4 x rtx-3090, 2 hosts, wifi", "'wifi' is neither a number of hosts nor a network: 1gbe"),
        ("4 x rtx-3090, 0 hosts, 1gbe", "there must be one host or more"),
    ],
)
def test_a_wrong_name_is_answered_with_the_valid_ones(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as answer:
        cluster_of(text)
    assert sentence in str(answer.value)
