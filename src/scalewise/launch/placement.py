"""Placement of ranks: devices, hosts and stragglers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from scalewise.core.errors import UserError
from scalewise.core.specs import unknown
from scalewise.launch.cpu_cores import allowed_cores
from scalewise.launch.emulated_hosts import MAX_HOSTS, parse_link

Role = Literal["rank", "worker", "server"]


@dataclass(frozen=True)
class RankGroup:
    """Ranks that one agent starts: they share a process group and fail together.

    Role 'worker' is a group of one that may fail alone; role 'server' has no devices.
    """

    count: int
    role: Role = "rank"
    first: int = 0
    """Number of the group's first process, counted over all groups of the role."""
    name: str = "ranks"
    """Prefix of the group's keys in the shared store."""
    hosts: tuple[str, ...] = ()
    """Name of the real host of every process; empty on one machine."""

    def process_name(self, local: int) -> str:
        """Name of a process in messages, such as 'server 1'; `local` is its number within the group."""
        return f"{self.role} {self.first + local}" + (f" on {self.hosts[local]}" if self.hosts else "")


DEVICE_KINDS = ("cpu", "cuda", "slice", "auto")
MAX_TIMEOUT_SECONDS = 1_000_000
MAX_SERVERS = 32
"""Largest tested number of servers (32 start within half a minute on two busy cores); each has a connection and threads
for every worker."""


@dataclass(frozen=True)
class Placement:
    """Devices, hosts and stragglers as requested; a session replaces device kind 'auto' by what the machine has."""

    devices: int = 1
    """Number of devices, over all hosts."""
    device_kind: str = "auto"
    """One rank's device: 'cpu' (a core), 'cuda' (a GPU), 'slice' (a share of one GPU) or 'auto' (cuda if possible)."""
    hosts: int = 1
    """Number of hosts: emulated on this machine as network namespaces, or real ones under torchrun."""
    link: str | None = None
    """Link speed of emulated hosts, such as '1gbit'."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """Stragglers: rank -> share of its cores that it may use."""
    slice_percent: int | None = None
    """Percentage of the GPU's multiprocessors per slice; 100 / devices by default."""
    cores_per_device: int = 1
    """Cores and threads of one cpu rank, equal for all numbers of devices so that speedups compare equal devices."""
    timeout_seconds: float = 60.0
    """Seconds that ranks wait for each other before the run fails."""
    servers: int = 0
    """Number of parameter servers; each has its own host if hosts are emulated."""
    ranks_on: tuple[int, ...] = ()
    """Number of the real host of every rank; empty on one machine."""
    servers_on: tuple[int, ...] = ()
    """Number of the real host of every server."""

    def __post_init__(self) -> None:
        _check_range("devices", self.devices, 1, None)
        _check_range("hosts", self.hosts, 1, None if self.ranks_on else MAX_HOSTS)
        if self.servers:
            _check_range("servers", self.servers, 1, MAX_SERVERS)
        _check_range("cores per device", self.cores_per_device, 1, None)
        if self.device_kind not in DEVICE_KINDS:
            raise unknown("device kind", self.device_kind, DEVICE_KINDS)
        if not 0 < self.timeout_seconds <= MAX_TIMEOUT_SECONDS:
            raise UserError(
                f"a timeout of {self.timeout_seconds:g} s is not possible; valid: above 0, up to "
                f"{MAX_TIMEOUT_SECONDS:,} s"
            )
        self._check_hosts()
        self._check_slow()
        self._check_slices()

    def _check_hosts(self) -> None:
        if self.link is not None and self.hosts + self.servers > MAX_HOSTS:
            raise UserError(
                f"{self.hosts} hosts and {self.servers} servers are too many hosts to emulate; valid: up to "
                f"{MAX_HOSTS} in total"
            )
        if self.hosts == 1 and not self.servers:
            if self.link is not None:
                raise UserError(f"link '{self.link}' needs emulated hosts; add --hosts (2 to {MAX_HOSTS})")
            return
        if self.link is not None:
            parse_link(self.link)
        if self.devices < self.hosts:
            raise UserError(f"{self.devices} devices are too few for {self.hosts} hosts; valid: {self.hosts} or more")
        if self.device_kind == "cuda" and self.link is not None:
            raise UserError(
                "emulated links limit sockets, which NCCL does not use on one machine; use --device-kind cpu or slice"
            )

    def _check_slow(self) -> None:
        for rank, share in self.slow.items():
            if not 0 <= rank < self.devices:
                raise UserError(f"cannot slow down rank {rank}, which does not exist; valid: 0 to {self.devices - 1}")
            if not 0.01 <= share <= 1:
                raise UserError(f"cannot slow down rank {rank} to a share of {share:g}; valid: 0.01 to 1")
        if self.slow and self.device_kind not in ("cpu", "auto"):
            raise UserError(f"only cpu ranks can be slowed down, not '{self.device_kind}'; use --device-kind cpu")

    def _check_slices(self) -> None:
        if self.slice_percent is None:
            return
        if self.device_kind != "slice":
            raise UserError(
                f"--slice-percent has no effect with --device-kind {self.device_kind}; use --device-kind slice"
            )
        _check_range("slice percent", self.slice_percent, 1, 100)

    def host_of(self, rank: int) -> int:
        """Number of a rank's host; neighbouring ranks share a host: 4 ranks on 2 hosts are on hosts 0 0 1 1."""
        return self.ranks_on[rank] if self.ranks_on else rank * self.hosts // self.devices

    @property
    def oversubscribed(self) -> bool:
        """Whether there are more cpu ranks than cores, so that step times differ from those of real devices."""
        devices = max(map(self.ranks_on.count, self.ranks_on)) if self.ranks_on else self.devices
        return self.device_kind == "cpu" and devices * self.cores_per_device > len(allowed_cores())


MAX_DEVICES = 64
"""Every rank receives the pipes of all ranks, and a forkserver passes at most 256 descriptors."""


def check_one_machine(placement: Placement) -> None:
    """Raise UserError if no machine can provide the devices."""
    devices, hosts = placement.devices, placement.hosts
    if devices > MAX_DEVICES:
        raise UserError(f"{devices} devices are too many for one machine; valid: 1 to {MAX_DEVICES}, or use torchrun")
    if hosts > 1 and placement.link is None:
        raise UserError(f"{hosts} emulated hosts need a link speed; add for example --link 1gbit")


def parse_slow(texts: Iterable[str]) -> dict[int, float]:
    """Parse RANK=SHARE options: ['1=0.5', '2=0.25'] -> {1: 0.5, 2: 0.25}."""
    slow: dict[int, float] = {}
    for text in texts:
        rank, _, share = text.partition("=")
        try:
            slow[int(rank)] = float(share)
        except ValueError:
            raise UserError(f"cannot read slow rank '{text}'; write RANK=SHARE, for example 1=0.5") from None
    return slow


def _check_range(name: str, value: int, least: int, most: int | None) -> None:
    if value < least or (most is not None and value > most):
        valid = f"{least} or more" if most is None else f"{least} to {most}"
        raise UserError(f"{name} cannot be {value}; valid: {valid}")


_TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def under_torchrun() -> bool:
    """Return whether torchrun started this process."""
    return all(name in os.environ for name in _TORCHRUN_VARIABLES)


def is_main_process() -> bool:
    """Return whether this process prints results: True except on ranks above 0 under torchrun."""
    return not under_torchrun() or os.environ["RANK"] == "0"
