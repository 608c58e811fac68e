"""Whether a profile's device is the cluster's: seconds of one are never combined with the links of another."""

from __future__ import annotations

import re

from scalewise.clusters.cluster import Cluster
from scalewise.errors import UserError

NOT_A_NAME = {"nvidia", "tesla", "geforce", "quadro", "sxm2", "sxm4", "sxm5", "pcie", "one", "gk210"}


def check_device(what: str, device: str, cluster: Cluster) -> None:
    """`what` begins the sentence of the refusal."""
    own = cluster.devices[0].name
    if not same_device(device, own):
        raise UserError(
            f"{what} {device}, but {cluster.name} has {own}: seconds of one device say nothing beside the links of "
            f"another; give --profile of a {own}, or one measured step as --step-time SECONDS@BATCH"
        )


def same_device(one: str, other: str) -> bool:
    """'NVIDIA GeForce GTX 1080 Ti' is 'GTX 1080 Ti', 'NVIDIA H200' is 'H200-SXM5'."""
    return _words(one) == _words(other)


def _words(name: str) -> set[str]:
    return {word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in NOT_A_NAME and word[-2:] != "gb"}
