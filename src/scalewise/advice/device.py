"""Devices by their names: how they are counted, and whether a profile's is the cluster's, as it must be."""

from __future__ import annotations

import re

from scalewise.clusters.cluster import Cluster
from scalewise.errors import UserError

NOT_A_NAME = {"nvidia", "tesla", "geforce", "quadro", "sxm2", "sxm4", "sxm5", "pcie", "one", "gk210"}
CORE = "one core of "
REMEDY = "give a profile of the latter as --profile, or one measured step as --step-time SECONDS@BATCH"


def check_device(what: str, device: str, cluster: Cluster, remedy: str = REMEDY) -> None:
    """`what` begins the sentence of the refusal, `remedy` ends it."""
    own = cluster.devices[0].name
    if not same_device(device, own):
        raise UserError(
            f"{what} {device}, but {cluster.name} has {own}: seconds of one device say nothing beside the links of "
            f"another; {remedy}"
        )


def counted(device: str, count: int = 1) -> str:
    """'one GTX 1080 Ti', '4 x GTX 1080 Ti'; 'one core of AMD EPYC', '2 cores of AMD EPYC'."""
    if count == 1:
        return device if device.startswith(CORE) else f"one {device}"
    if device.startswith(CORE):
        return f"{count} cores of {device.removeprefix(CORE)}"
    return f"{count} x {device}"


def same_device(one: str, other: str) -> bool:
    """'NVIDIA GeForce GTX 1080 Ti' is 'GTX 1080 Ti', 'NVIDIA H200' is 'H200-SXM5'."""
    return _words(one) == _words(other)


def _words(name: str) -> set[str]:
    return {word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in NOT_A_NAME and word[-2:] != "gb"}
