"""A cluster's file says what it means, or one sentence says what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.clusters.read import parse_cluster, read_cluster
from scalewise.errors import UserError

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


def test_every_key_arrives() -> None:
    cluster = parse_cluster(PAIR, "pair.toml")
    assert (cluster.name, cluster.size, cluster.price_per_hour) == ("pair", 4, 1.5)
    assert [cluster.device_at(place).name for place in (0, 1)] == ["small", "large"]
    link = cluster.link("devices")
    assert link is not None
    assert (link.GBps, link.latency_us, link.shared) == (12.0, 0.0, True)
    assert cluster.measured[0].GBps == 9


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("hosts = 2", "hosts = 0", "pair.toml: hosts is 0; it must be a whole number above 0"),
        ("hosts = 2", "host = 2", "unknown key in pair.toml: 'host' (did you mean 'hosts'?)"),
        ("hosts = 2\n", "", "pair.toml: hosts is missing"),
        ("count = 1\nmemory_GB = 8", "count = 3\nmemory_GB = 8", "devices_per_host is 2, but its [[device]]s count 4"),
        ("GBps = 12", "GBps = 'fast'", "pair.toml: [[link]] 1: GBps is 'fast'; it must be a number above 0"),
        ("GBps = 12", "GBps = inf", "[[link]] 1: GBps is inf; it must be a number above 0"),
        ("latency_us = 50", "latency_us = -1", "[[link]] 2: latency_us is -1; it must be a number of 0 or more"),
        ('between = "hosts"', 'between = "racks"', "between is 'racks'; valid: devices, hosts, host-device"),
        ('between = "hosts"', 'between = "devices"', '2 hosts need a [[link]] with between = "hosts"'),
        ("shared = true", 'shared = "yes"', "shared is 'yes'; it must be true or false"),
        ('"all_reduce"', '"all_reduced"', "unknown operation in pair.toml 'all_reduced' (did you mean 'all_reduce'?)"),
        ("[[device]]", "[[devices]]", "unknown key in pair.toml: 'devices'"),
        ('name = "pair"', "name = ", "pair.toml is not a cluster: "),
    ],
)
def test_what_is_wrong_is_one_sentence(old: str, new: str, sentence: str) -> None:
    assert old in PAIR
    with pytest.raises(UserError) as answer:
        parse_cluster(PAIR.replace(old, new), "pair.toml")
    assert sentence in str(answer.value)
    assert "\n" not in str(answer.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the cluster .*none.toml: No such file"):
        read_cluster(tmp_path / "none.toml")
