"""Compose a host from GPUs of the catalogue, with links derived from specifications.

NVSwitch, NVLink mesh   every device reaches every other at full speed
NVLink bridges          pairs of devices; other pairs use PCIe
PCIe, peer-to-peer      one copy from device to device
PCIe, through host      a copy to host memory and one from it; all devices share the host's copies
two sockets             half of the devices under each; between the halves the link of the sockets counts
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scalewise.core.errors import UserError
from scalewise.hardware.cluster import Cluster, Device, Link
from scalewise.hardware.gpus import Gpu

MOST_PER_HOST = 8
PCIE3_GBps = 12.0
"""Bandwidth of PCIe 3.0 x16 in each direction; each generation doubles it."""
DEFAULT_LATENCY_us, THROUGH_HOST_LATENCY_us = 5.7, 11.4
BRIDGED_GBps, BRIDGED_BOTH_WAYS_GBps = 10.0, 14.4
"""Bandwidth of PCIe 3.0 x16 through host memory or a host bridge, in one direction while the other is idle, and in both
together, as in DataParallel steps of TITAN Xp, GTX 1080 Ti and RTX 2080 Ti (pytorch-gpu-benchmark)."""
HOST_COPIES_GBps = {3: 24.0, 4: 24.0, 5: 96.0}
"""Bandwidth that all copies of a host through its memory have together, by PCIe generation. 3: four T4 with 6 GB/s each
(siasosp23/artifacts). 4: assumed to be the same. 5: assumed; 140 to 220 GB/s are reported for the best hosts
(NVIDIA/nccl issue 1639)."""
SOCKETS_GBps = {3: 10.0, 4: 16.0, 5: 22.0}
"""Bandwidth between two sockets in each direction: Skylake, Zen 2, Sapphire Rapids (NVIDIA/nccl src/graph/topo.h)."""
SECOND_SOCKET = 0.75
"""Share of the host's copies that remains with two sockets, as half of them cross the sockets' link; assumed."""
NVLINK_SHARE = 0.41
"""Usable bandwidth in one direction, as a share of the specified sum of both: 240 of 600 (A100), 371 of 900 (H100)."""
LAUNCH_us = 5.0
TOPOLOGY = "NVIDIA/nccl src/graph/topo.h and tuning.cc"
PEER_TO_PEER_ARCHITECTURES = ("Kepler", "Maxwell", "Pascal", "Volta")
"""Architectures whose consumer cards copy peer-to-peer over PCIe."""
VIRTUALISED = ("T4", "A10G", "L4")
"""Cards of cloud hosts, whose hypervisors do not offer peer-to-peer copies."""


@dataclass(frozen=True)
class HostOptions:
    """Properties of a host that its GPUs do not determine; None: the usual one of these GPUs."""

    bridges: bool | None = None
    """NVLink bridges between pairs of cards."""
    pcie_generation: int | None = None
    sockets: int = 1
    peer_to_peer: bool | None = None
    """Whether devices copy directly over PCIe."""

    @property
    def words(self) -> list[str]:
        """Options as they are written in a composed name."""
        words = [] if self.bridges is None else ["nvlink" if self.bridges else "no nvlink"]
        words += [] if self.pcie_generation is None else [f"pcie{self.pcie_generation}"]
        words += [] if self.sockets == 1 else [f"{self.sockets} sockets"]
        return words + ([] if self.peer_to_peer is None else ["p2p" if self.peer_to_peer else "no p2p"])

    @property
    def given(self) -> bool:
        return self != HostOptions()


OPTION_WORDS = ("nvlink", "no nvlink", "pcie3", "pcie4", "pcie5", "1 socket", "2 sockets", "p2p", "no p2p")


def add_option(options: HostOptions, word: str) -> HostOptions | None:
    """Return the options with one more word, such as 'pcie4' or '2 sockets'; None if it is not an option."""
    if match := re.fullmatch(r"(no )?(nvlink|bridges|p2p)", word):
        field = "peer_to_peer" if match[2] == "p2p" else "bridges"
        return replace(options, **{field: match[1] is None})
    if match := re.fullmatch(r"pcie\s*([345])(?:\.0)?", word):
        return replace(options, pcie_generation=int(match[1]))
    if match := re.fullmatch(r"([12]) sockets?", word):
        return replace(options, sockets=int(match[1]))
    return None


def host_of(gpu: Gpu, count: int, options: HostOptions | None = None) -> Cluster:
    """One host with `count` GPUs of this kind. The links are assumed, and `summary` says so."""
    options = options or HostOptions()
    if not 1 <= count <= MOST_PER_HOST:
        raise UserError(f"a host with {gpu.name} holds 1 to {MOST_PER_HOST} devices, not {count}", "add hosts")
    generation = min(options.pcie_generation or gpu.pcie_generation, gpu.pcie_generation)
    links, assumed = _device_links(gpu, count, generation, options)
    pcie = f"pcie{generation}"
    host_link = Link("host-device", pcie, _pcie_GBps(generation), DEFAULT_LATENCY_us, source=f"{TOPOLOGY}: PCIe x16")
    device = Device(gpu.name, count, gpu.memory_GB, gpu.fp32_TFLOPS, gpu.memory_GBps, LAUNCH_us)
    return Cluster(
        name=", ".join([f"{count}x-{gpu.key}", *options.words]),
        hosts=1,
        devices_per_host=count,
        devices=(device,),
        links=(*links, host_link),
        summary=f"{count} x {gpu.name} per host; assumed: {assumed}",
        source=gpu.source,
    )


def _device_links(gpu: Gpu, count: int, generation: int, options: HostOptions) -> tuple[Sequence[Link], str]:
    """Links between the devices of a host, the closest ones first, and their description."""
    nvlink_GBps = round(NVLINK_SHARE * gpu.nvlink_GBps, 1)
    if nvlink_GBps and _is_module(gpu) and options.bridges is not False:
        link = Link("devices", "nvlink", nvlink_GBps, 3.4, source=TOPOLOGY)
        return [link], f"NVLink or similar, {nvlink_GBps:g} GB/s per direction"
    links, texts = _pcie_links(gpu, count, generation, options)
    if not options.bridges:
        return links, texts
    if not nvlink_GBps:
        raise UserError(f"{gpu.name} has no NVLink", "leave nvlink out")
    if count % 2:
        raise UserError(f"NVLink bridges connect pairs, but {count} x {gpu.name} is an odd number", "leave nvlink out")
    bridge = Link("devices", "nvlink-bridge", nvlink_GBps, 3.4, group=2, source=TOPOLOGY)
    return [bridge, *links], f"NVLink bridges between pairs, {nvlink_GBps:g} GB/s; {texts}"


def _is_module(gpu: Gpu) -> bool:
    """Whether the GPU is a module on a board with NVLink, rather than a card."""
    return gpu.memory_type == "HBM" and "PCIe" not in gpu.name and "NVL " not in gpu.name and gpu.name != "A30"


def _pcie_links(gpu: Gpu, count: int, generation: int, options: HostOptions) -> tuple[list[Link], str]:
    direct = _copies_peer_to_peer(gpu) if options.peer_to_peer is None else options.peer_to_peer
    within = _pcie_link(gpu, generation, direct, options.sockets)
    text = f"PCIe {generation}.0 with peer-to-peer copies, {within.GBps:g} GB/s"
    if not direct:
        both, together = within.both_ways_GBps or within.GBps, within.host_GBps or within.GBps
        text = (
            f"PCIe {generation}.0 without peer-to-peer copies: {both / 2:g} GB/s in both directions through host "
            f"memory, {together:g} GB/s for all devices of a host"
        )
    if options.sockets == 1 or count < 2:
        return [within], text
    between_GBps = min(within.GBps, SOCKETS_GBps[generation])
    between = replace(
        within, kind=f"{within.kind}-between-sockets", GBps=between_GBps, latency_us=within.latency_us + 2
    )
    return [replace(within, group=-(-count // 2)), between], f"{text}; {between_GBps:g} GB/s between two sockets"


def _pcie_link(gpu: Gpu, generation: int, direct: bool, sockets: int) -> Link:
    pcie = _pcie_GBps(generation)
    bridged = pcie * BRIDGED_GBps / PCIE3_GBps
    both = round(pcie * (BRIDGED_BOTH_WAYS_GBps / PCIE3_GBps if gpu.consumer else 1), 1)
    if direct:
        GBps, both_ways = (bridged, both) if gpu.consumer and gpu.memory_type == "GDDR" else (pcie, None)
        return Link(
            "devices",
            f"pcie{generation}",
            GBps,
            DEFAULT_LATENCY_us,
            both_ways_GBps=both_ways,
            source=f"{TOPOLOGY}: PCIe x16",
        )
    return Link(
        "devices",
        f"pcie{generation}-through-host",
        bridged,
        THROUGH_HOST_LATENCY_us,
        both_ways_GBps=both,
        host_GBps=HOST_COPIES_GBps[generation] * (SECOND_SOCKET if sockets == 2 else 1),
        source=f"{TOPOLOGY}: PCIe x16; every byte is copied to host memory and from it",
    )


def _copies_peer_to_peer(gpu: Gpu) -> bool:
    """Whether cards of this kind usually copy directly over PCIe: data-center and workstation cards do, GeForce and
    TITAN cards do not since Turing."""
    if gpu.name in VIRTUALISED:
        return False
    return not gpu.consumer or gpu.architecture in PEER_TO_PEER_ARCHITECTURES


def usual_ports(gpu: Gpu, count: int) -> int:
    """Usual number of InfiniBand ports of a host: one per module since Ampere, one for two modules before, else one."""
    if not _is_module(gpu):
        return 1
    return max(1, count // 2) if gpu.architecture in ("Pascal", "Volta") else count


def offers_gpudirect(gpu: Gpu) -> bool:
    """Whether network interfaces can read the memory of this GPU: GeForce and TITAN cards do not allow it."""
    return not gpu.consumer


def _pcie_GBps(generation: int) -> float:
    return float(PCIE3_GBps * 2 ** (generation - 3))
