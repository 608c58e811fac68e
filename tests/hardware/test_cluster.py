"""Reading cluster files, and errors for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.core.errors import UserError
from scalewise.hardware.catalogue import catalogue, cluster_of
from scalewise.hardware.cluster import (
    Cluster,
    Device,
    Link,
    Measured,
    cluster_template,
    cluster_text,
    parse_cluster,
    read_cluster,
)
from scalewise.hardware.gpus import gpus

PAIR = """
name = "pair"
hosts = 2
devices_per_host = 2
price_per_hour = 1.5

[[device]]
name = "small"
count = 1
memory_GB = 8
peak_TFLOPS = 10
memory_GBps = 400
launch_us = 5

[[device]]
name = "large"
count = 1
memory_GB = 16
peak_TFLOPS = 20
memory_GBps = 800
launch_us = 5

[[link]]
between = "devices"
kind = "pcie3"
GBps = 12
latency_us = 0
shared = true

[[link]]
between = "hosts"
kind = "1gbe"
GBps = 0.118
latency_us = 50

[[measured]]
operation = "all_reduce"
backend = "nccl"
devices = 2
GBps = 9
latency_us = 20
"""


def test_all_keys_are_read() -> None:
    cluster = parse_cluster(PAIR, "pair.toml")
    assert (cluster.name, cluster.size, cluster.price_per_hour) == ("pair", 4, 1.5)
    assert [cluster.device_at(place).name for place in (0, 1)] == ["small", "large"]
    link = cluster.link("devices")
    assert link is not None
    assert (link.GBps, link.latency_us, link.shared) == (12.0, 0.0, True)
    assert cluster.measured[0].GBps == 9


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hosts = 2", "hosts = 0", "pair.toml: hosts is 0; it must be a whole number above 0"),
        ("hosts = 2", "host = 2", "unknown key in pair.toml: 'host' (did you mean 'hosts'?)"),
        ("hosts = 2\n", "", "pair.toml: hosts is missing"),
        (
            "count = 1\nmemory_GB = 8",
            "count = 3\nmemory_GB = 8",
            "devices_per_host is 2, but the counts of all [[device]]",
        ),
        ("GBps = 12", "GBps = 'fast'", "pair.toml: [[link]] 1: GBps is 'fast'; it must be a number above 0"),
        ("GBps = 12", "GBps = inf", "[[link]] 1: GBps is inf; it must be a number above 0"),
        ("latency_us = 50", "latency_us = -1", "[[link]] 2: latency_us is -1; it must be a number of 0 or more"),
        ('between = "hosts"', 'between = "racks"', "between is 'racks'; valid: devices, hosts, host-device"),
        ('between = "hosts"', 'between = "devices"', '2 hosts need a [[link]] with between = "hosts"'),
        ("shared = true", 'shared = "yes"', "shared is 'yes'; it must be true or false"),
        ('"all_reduce"', '"all_reduced"', "unknown operation in pair.toml 'all_reduced' (did you mean 'all_reduce'?)"),
        ("[[device]]", "[[devices]]", "unknown key in pair.toml: 'devices'"),
        ('name = "pair"', "name = ", "pair.toml is not a cluster file: "),
        ('name = "pair"', f"name = {'[' * 100_000}", "pair.toml is not a cluster file: it is nested too deeply"),
        ("hosts = 2", f"hosts = 0x{'f' * 9000}", "hosts is a number of many digits; it must be a whole number above 0"),
        ("devices_per_host = 2", "devices_per_host = 10000", "devices_per_host is 10,000; valid: 1 to 4,096"),
        ("GBps = 12", "GBps = 1e30", "GBps is 1e+30; it must be a number above 0, up to 1e+15"),
    ],
)
def test_error_for_an_invalid_file(old: str, new: str, message: str) -> None:
    assert old in PAIR
    with pytest.raises(UserError) as error:
        parse_cluster(PAIR.replace(old, new), "pair.toml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_error_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the cluster file .*none.toml: No such file"):
        read_cluster(tmp_path / "none.toml")


HERE = Cluster(
    name="here",
    hosts=2,
    devices_per_host=1,
    devices=(Device('a "core"', 1, 8.5, 0.05, 12.0, 1.5, copy_GBps=1.25, beside_memory=1.4),),
    links=(Link("hosts", "1gbit", 0.118, 150.0, shared=True),),
    measured=(Measured("ring", "gloo", 2, 0.11, 210.0, hosts=2, from_bytes=4096),),
    backend="gloo",
    knowledge="measured",
    servers_apart=True,
)


@pytest.mark.parametrize("cluster", [*catalogue().values(), HERE, cluster_of("4 x t4, 3 hosts")], ids=lambda c: c.name)
def test_written_clusters_can_be_read(cluster: Cluster) -> None:
    assert parse_cluster(cluster_text(cluster, ["a remark"]), "test") == cluster


@pytest.mark.parametrize(
    "name", [*catalogue(), *gpus(), "4 x rtx-4090, 2 hosts, 25gbe", "8x-a100-nvlink, 16 hosts, 1gbe"]
)
def test_a_shown_cluster_can_be_copied(name: str) -> None:
    cluster = cluster_of(name if name in catalogue() or "," in name else f"2 x {name}")
    text = cluster_template(cluster)
    assert parse_cluster(text, "test") == cluster
    assert "# price_per_hour =" in text or cluster.price_per_hour is not None
    assert text.count("bandwidth of one path") == 1


def test_numbers_have_five_digits() -> None:
    text = cluster_text(Cluster("x", 1, 1, (Device("d", 1, 1 / 3, 1e-5, 2, 0),), ()))
    assert "memory_GB = 0.33333\n" in text
    assert "peak_TFLOPS = 1e-05\n" in text
