"""The cluster that this machine is: as it was measured before, or measured now."""

from __future__ import annotations

from collections.abc import Callable

from scalewise.clusters.cluster import Cluster
from scalewise.clusters.read import read_cluster
from scalewise.session.hardware import device_name
from scalewise.verbs.links import HERE, here_device, here_path, measure_links


def cluster_here(on_progress: Callable[[str], None] | None = None) -> tuple[Cluster, str]:
    """And a few words on where its links come from. What was kept of another device is measured again."""
    path = here_path()
    if path.is_file():
        kept = read_cluster(path)
        if kept.devices[0].name == device_name(here_device()):
            return kept, f"links {kept.source}"
    tell = on_progress or (lambda _: None)
    tell("the links of this machine were never measured: doing so now, which takes a minute or less")
    return measure_links(save=HERE, on_progress=on_progress).cluster, f"links measured now, and kept in {path}"
