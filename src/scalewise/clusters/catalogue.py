"""The clusters that ship with the package, files of one's own, and clusters composed of boxes and networks."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from scalewise.clusters.cluster import Cluster, Device, Link
from scalewise.clusters.networks import NETWORKS
from scalewise.clusters.read import parse_cluster, read_cluster
from scalewise.errors import UserError
from scalewise.spec import unknown

COMPOSED = re.compile(r"(\d+)\s*x\s*([a-z][\w.-]*)((?:\s*,\s*[\w. -]+)*)", re.IGNORECASE)
EXAMPLE = "'8 x a100-nvlink, 4 hosts, 100gbe'"


@cache
def catalogue() -> dict[str, Cluster]:
    """By name; a file's name is its cluster's."""
    found = [file for file in (files(__package__) / "catalogue").iterdir() if file.name.endswith(".toml")]
    clusters = [parse_cluster(file.read_text(), file.name) for file in found]
    return {cluster.name: cluster for cluster in sorted(clusters, key=lambda cluster: cluster.name.partition("x-")[2])}


def cluster_of(text: str) -> Cluster:
    """'4x-gtx-1080-ti', 'my-box.toml', or '8 x a100-nvlink, 4 hosts, 100gbe', also after a name of the catalogue."""
    if text in catalogue():
        return catalogue()[text]
    if text.endswith(".toml") or Path(text).is_file():
        return read_cluster(Path(text))
    if match := COMPOSED.fullmatch(text.strip()):
        return _compose(text, int(match[1]), match[2].lower(), match[3])
    name, _, tail = text.partition(",")
    if name.strip() in catalogue():
        return _compose(text, catalogue()[name.strip()].devices_per_host, name.strip().partition("x-")[2], tail)
    raise unknown("cluster", text, [*catalogue(), f"one composed as in {EXAMPLE}"])


def _compose(text: str, count: int, box_name: str, tail: str) -> Cluster:
    boxes = {name.partition("x-")[2]: cluster for name, cluster in catalogue().items()}
    if box_name not in boxes:
        raise unknown("box", box_name, boxes)
    box = boxes[box_name]
    if not 1 <= count <= box.devices_per_host:
        raise UserError(f"'{text}': a box of {box_name} holds 1 to {box.devices_per_host} devices, not {count}")
    hosts, network = 1, None
    for part in filter(None, (part.strip().lower() for part in tail.split(","))):
        if found := re.fullmatch(r"(\d+) hosts?", part):
            hosts = int(found[1])
        elif part in NETWORKS:
            network = NETWORKS[part]
        else:
            raise UserError(f"'{text}': '{part}' is neither a number of hosts nor a network: {', '.join(NETWORKS)}")
    if hosts < 1:
        raise UserError(f"'{text}': there must be one host or more, as in {EXAMPLE}")
    if hosts > 1 and network is None and box.link("hosts") is None:
        raise UserError(f"'{text}': name the network between the hosts, as in {EXAMPLE}; valid: {', '.join(NETWORKS)}")
    return _of_hosts(box, count, hosts, network)


def _of_hosts(box: Cluster, count: int, hosts: int, network: Link | None) -> Cluster:
    links = box.links if network is None else (*(link for link in box.links if link.between != "hosts"), network)
    kept: list[Device] = []
    for device in box.devices:
        taken = min(device.count, count - sum(each.count for each in kept))
        kept += [replace(device, count=taken)] if taken else []
    whole = count == box.devices_per_host
    return replace(
        box,
        name=", ".join(
            [f"{count} x {box.name.partition('x-')[2]}"]
            + ([f"{hosts} hosts", network.kind if network else "its own network"] if hosts > 1 else [])
        ),
        hosts=hosts,
        devices_per_host=count,
        devices=tuple(kept),
        links=links,
        price_per_hour=box.price_per_hour * hosts if box.price_per_hour is not None and whole else None,
    )
