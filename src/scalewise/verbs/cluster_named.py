"""A cluster as the user named it, and where its links come from."""

from __future__ import annotations

from collections.abc import Callable

from scalewise.clusters.catalogue import cluster_of
from scalewise.clusters.cluster import Cluster

HERE = "here"


def cluster_named(cluster: str | Cluster, on_progress: Callable[[str], None] | None = None) -> tuple[Cluster, str]:
    """'here' is this machine, measured when first asked for."""
    if not isinstance(cluster, str):
        return cluster, "links as given"
    if cluster != HERE:
        return cluster_of(cluster), f"links of {cluster}"
    from scalewise.verbs.here import cluster_here

    return cluster_here(on_progress)
