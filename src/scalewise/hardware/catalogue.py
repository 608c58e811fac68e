"""Find a cluster by its catalogue name, its file, or a composed name such as '8 x a100-nvlink, 4 hosts, 100gbe'."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from scalewise.core.errors import UserError
from scalewise.core.specs import matching, unknown
from scalewise.hardware.cluster import Cluster, Device, Link, parse_cluster, read_cluster
from scalewise.hardware.gpu_hosts import (
    MOST_PER_HOST,
    OPTION_WORDS,
    HOST_COPIES_GBps,
    HostOptions,
    add_option,
    host_of,
    offers_gpudirect,
    usual_ports,
)
from scalewise.hardware.gpus import find_gpu, gpus

_LINE = "1500-byte frames carry 94.9 % of line rate; HKBU-HPML/MG-WFBP: 523 us for 14 steps over 10 GbE"
_IB = "NVIDIA/nccl src/graph/topo.h: 12 GB/s for 100 Gb/s, in proportion; tuning.cc: 14 us"


def _hosts(kind: str, GBps: float, latency_us: float, source: str) -> Link:
    return Link("hosts", kind, GBps, latency_us, shared=True, source=source)


NETWORKS: dict[str, Link] = {
    "1gbe": _hosts("1gbe", 0.1186, 37, _LINE),
    "10gbe": _hosts("10gbe", 1.186, 37, _LINE),
    "25gbe": _hosts("25gbe", 2.97, 37, _LINE),
    "100gbe": _hosts("100gbe", 11.9, 37, _LINE),
    "infiniband-56": _hosts("infiniband-56", 6.72, 14, _IB),
    "infiniband-100": _hosts("infiniband-100", 12.0, 14, _IB),
    "infiniband-200": _hosts("infiniband-200", 24.0, 14, _IB),
    "infiniband-400": _hosts("infiniband-400", 48.0, 14, _IB),
}
"""Networks between hosts. All devices of a host share its ports, which send and receive at full bandwidth at once."""


@dataclass(frozen=True)
class NetworkOptions:
    """Network between hosts as given in a composed name; None: not given."""

    link: Link | None = None
    ports: int | None = None
    gpudirect: bool | None = None

    def add(self, text: str, word: str) -> NetworkOptions | None:
        """Return the options with one more word, such as '8 x infiniband-400' or 'no gpudirect'; None if it is none."""
        if match := re.fullmatch(r"(no )?gpudirect", word):
            return replace(self, gpudirect=match[1] is None)
        match = re.fullmatch(r"(?:(\d+)\s*x\s+)?(.+)", word)
        kind = matching(match[2], NETWORKS) if match else None
        if match is None or kind is None:
            return None
        ports = int(match[1]) if match[1] else None
        if ports is not None and not 1 <= ports <= MOST_PORTS:
            raise UserError(f"'{text}': a host has 1 to {MOST_PORTS} network interfaces, not {ports}")
        return replace(self, link=NETWORKS[kind], ports=ports)


MOST_PORTS = 16
GPUDIRECT_WORDS = ("gpudirect", "no gpudirect")
_COMPOSED = re.compile(r"(\d+)\s*x\s*([a-z][\w.-]*)((?:\s*,\s*[\w. -]+)*)", re.IGNORECASE)
EXAMPLE = "'8 x a100-nvlink, 4 hosts, 100gbe'"


@cache
def catalogue() -> dict[str, Cluster]:
    """Return all clusters of the catalogue by name. Each file is named after its cluster."""
    paths = [path for path in (files(__package__) / "clusters").iterdir() if path.name.endswith(".toml")]
    clusters = [parse_cluster(path.read_text(), path.name) for path in paths]
    return {cluster.name: cluster for cluster in sorted(clusters, key=lambda cluster: cluster.name.partition("x-")[2])}


def cluster_of(text: str) -> Cluster:
    """Return the cluster of a catalogue name, a TOML file or a composed name.

    Examples: '4x-gtx-1080-ti', 'my-cluster.toml', '2 x a100-nvlink', '8x-a100-nvlink, 4 hosts, 100gbe'.
    """
    if text in catalogue():
        return catalogue()[text]
    if text.endswith(".toml") or Path(text).is_file():
        return read_cluster(Path(text))
    if match := _COMPOSED.fullmatch(text.strip()):
        return _compose(text, int(match[1]), match[2].lower(), match[3])
    head, comma, tail = text.partition(",")
    name = matching(head.strip(), catalogue())
    if name and not comma:
        return catalogue()[name]
    if name:
        return _compose(text, catalogue()[name].devices_per_host, name.partition("x-")[2], tail)
    raise unknown("cluster", text, [*catalogue(), f"a composed name such as {EXAMPLE}"])


def _compose(text: str, count: int, device_name: str, tail: str) -> Cluster:
    options, hosts, requested = _parse_tail(text, tail)
    one_host = {name.partition("x-")[2]: cluster for name, cluster in catalogue().items()}
    name = matching(device_name, one_host)
    fits = name is not None and (count <= one_host[name].devices_per_host or count > MOST_PER_HOST)
    if name is None or options.given or not fits:
        name, host = _gpu_host(text, device_name, count, options, one_host)
    else:
        host = one_host[name]
    if not 1 <= count <= host.devices_per_host:
        raise UserError(
            f"'{text}': a host has 1 to {host.devices_per_host} devices of {name}, not {count}; "
            f"add hosts for more, as in {EXAMPLE}"
        )
    if hosts < 1:
        raise UserError(f"'{text}': the number of hosts is {hosts}; it must be 1 or more, as in {EXAMPLE}")
    if hosts > 1 and requested.link is None and host.link("hosts") is None:
        raise UserError(
            f"'{text}': the network between the hosts is missing; add it as in {EXAMPLE}; valid: {', '.join(NETWORKS)}"
        )
    network, assumed = _network(host, count, requested) if hosts > 1 else (None, "")
    return _replicate(host, count, hosts, network, assumed)


def _parse_tail(text: str, tail: str) -> tuple[HostOptions, int, NetworkOptions]:
    """Parse what follows the devices: options of a host, the number of hosts, and the network between them."""
    options, hosts, network = HostOptions(), 1, NetworkOptions()
    for part in filter(None, (part.strip().lower() for part in tail.split(","))):
        if match := re.fullmatch(r"(\d+) hosts?", part):
            hosts = int(match[1])
        elif extended := add_option(options, part):
            options = extended
        elif changed := network.add(text, part):
            network = changed
        else:
            valid = [*NETWORKS, "or a number of hosts such as '4 hosts'", *OPTION_WORDS, *GPUDIRECT_WORDS]
            raise unknown(f"network in '{text}':", part, valid)
    return options, hosts, network


_PORT_SUFFIXES = {"-nvlink": True, "-pcie": False}


def _gpu_host(
    text: str, name: str, count: int, options: HostOptions, known: Mapping[str, Cluster]
) -> tuple[str, Cluster]:
    """One host with links derived from the specification of its GPUs, for boxes that the catalogue does not have."""
    gpu = find_gpu(name)
    for suffix, bridges in _PORT_SUFFIXES.items():
        if gpu is None and name.endswith(suffix):
            gpu = find_gpu(name.removesuffix(suffix))
            options = options if options.bridges is not None else replace(options, bridges=bridges)
    if gpu is None and (box := matching(name, known)):
        gpu = find_gpu(known[box].devices[0].name)
    if gpu is None:
        raise unknown("device", name, [*known, *gpus()])
    try:
        return gpu.key, host_of(gpu, count, options)
    except UserError as error:
        raise UserError(f"'{text}': {error}") from None


def _network(host: Cluster, count: int, requested: NetworkOptions) -> tuple[Link, str]:
    """Link between hosts with `count` devices each, and a description of what is assumed about it."""
    own = host.link("hosts")
    link = requested.link or own
    assert link is not None
    gpu = find_gpu(host.devices[0].name)
    fabric = link.kind.startswith("infiniband")
    if requested.ports is not None:
        ports = requested.ports
    elif own is not None and (fabric or requested.link is None):
        ports = max(1, (own.ports or 1) * count // host.devices_per_host)
    else:
        ports = usual_ports(gpu, count) if gpu and fabric else 1
    direct = fabric and (gpu is None or offers_gpudirect(gpu)) if requested.gpudirect is None else requested.gpudirect
    # The copies of one Ethernet port through host memory are faster than the port.
    limited = not direct and (fabric or ports > 1 or requested.gpudirect is False)
    generation = gpu.pcie_generation if gpu else min(HOST_COPIES_GBps)
    copies = HOST_COPIES_GBps.get(generation, min(HOST_COPIES_GBps.values())) if limited else None
    words = [f"{ports} network interface{'s' if ports > 1 else ''} of {link.GBps:g} GB/s per host"] * (
        requested.ports is None and requested.link is not None
    )
    if fabric and requested.gpudirect is None:
        words.append("GPUDirect" if direct else "no GPUDirect")
    if copies:
        words.append(f"{copies:g} GB/s through the memory of a host")
    return replace(link, ports=ports, host_GBps=copies if requested.link or copies else link.host_GBps), ", ".join(
        words
    )


def _replicate(host: Cluster, count: int, hosts: int, network: Link | None, assumed: str) -> Cluster:
    """Return a cluster of `hosts` copies of a host, with its first `count` devices each."""
    links = host.links if network is None else (*(link for link in host.links if link.between != "hosts"), network)
    devices: list[Device] = []
    for device in host.devices:
        used = min(device.count, count - sum(chosen.count for chosen in devices))
        devices += [replace(device, count=used)] if used else []
    is_whole = count == host.devices_per_host
    return replace(
        host,
        name=", ".join(
            [f"{count} x {host.name.partition('x-')[2]}"]
            + ([f"{hosts} hosts", *_network_words(host, network)] if network else [])
        ),
        hosts=hosts,
        devices_per_host=count,
        devices=tuple(devices),
        links=links,
        summary=host.summary + (f"{', ' if 'assumed:' in host.summary else '; assumed: '}{assumed}" if assumed else ""),
        price_per_hour=host.price_per_hour * hosts if host.price_per_hour is not None and is_whole else None,
    )


def _network_words(host: Cluster, network: Link) -> list[str]:
    """Network as it is written in a composed name."""
    own = host.link("hosts")
    if own is not None and network.kind == own.kind:
        words = ["its own network"]
    else:
        is_usual = network.ports == 1 and not network.kind.startswith("infiniband")
        words = [network.kind if is_usual else f"{network.ports} x {network.kind}"]
    return words + (["no gpudirect"] if network.host_GBps else [])
