"""Clusters written are clusters read."""

from __future__ import annotations

import pytest

from scalewise.clusters.catalogue import catalogue, cluster_of
from scalewise.clusters.cluster import Cluster, Device, Link, Measured
from scalewise.clusters.read import parse_cluster
from scalewise.clusters.write import cluster_text

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
def test_what_is_written_reads_the_same(cluster: Cluster) -> None:
    assert parse_cluster(cluster_text(cluster, ["a remark"]), "test") == cluster


def test_figures_keep_five_digits() -> None:
    text = cluster_text(Cluster("x", 1, 1, (Device("d", 1, 1 / 3, 1e-5, 2, 0),), ()))
    assert "memory_GB = 0.33333\n" in text
    assert "peak_TFLOPS = 1e-05\n" in text
