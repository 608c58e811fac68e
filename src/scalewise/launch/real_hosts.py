"""Real hosts of a run that torchrun, Slurm or Ray started: their devices, and which rank runs on which host."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from scalewise.core.errors import RunFailed, UserError
from scalewise.launch.placement import Placement

JOIN_SECONDS = 300.0
"""Longest wait for other processes of the run, which a scheduler may start later."""
LOST = 1
"""Exit code of processes whose command ended without an exit code."""


@dataclass(frozen=True)
class Launch:
    """Position of this process in the run, from the environment variables of torchrun."""

    host: int
    hosts: int
    local_rank: int
    local_ranks: int
    address: str
    port: int
    attempt: str
    """Distinguishes the attempts of a run that torchrun restarts."""
    run: str
    has_store: bool
    """Whether a store already listens at the address; if not, the first host opens it."""

    @staticmethod
    def from_environment() -> Launch:
        environment = os.environ
        local_ranks = int(environment["LOCAL_WORLD_SIZE"])
        return Launch(
            host=int(environment.get("GROUP_RANK", "0")),
            hosts=int(environment.get("GROUP_WORLD_SIZE", "1")),
            local_rank=int(environment["LOCAL_RANK"]),
            local_ranks=local_ranks,
            address=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]),
            attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
            run=environment.get("TORCHELASTIC_RUN_ID", ""),
            has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )


@dataclass(frozen=True)
class RealHost:
    """A machine of the run."""

    number: int
    name: str
    address: str
    """Address through which this host reaches the first one."""
    interface: str
    """Network interface of the address."""
    devices: int
    """Number of ranks that the scheduler gives to this host."""
    gpus: int


@dataclass
class RealHosts:
    """Hosts of the run, and those that were lost since its start."""

    hosts: Sequence[RealHost]
    pool: Any
    """Connections to the hosts: a `HostPool`."""
    lost: dict[int, str] = field(default_factory=dict)
    """Number of a lost host -> reason."""

    @property
    def present(self) -> list[RealHost]:
        return [host for host in self.hosts if host.number not in self.lost]

    @property
    def size(self) -> int:
        """Number of ranks on the hosts that are present."""
        return sum(host.devices for host in self.present)

    def name_of(self, number: int) -> str:
        return next(host.name for host in self.hosts if host.number == number)

    def settle(self, placement: Placement) -> Placement:
        """Assign ranks and servers to hosts; raise UserError if the run has too few ranks for them."""
        if placement.link is not None or (placement.hosts > 1 and not placement.ranks_on):
            raise UserError(
                "hosts cannot be emulated in a run on real hosts; leave --hosts and --link out (hosts are filled in "
                "order)"
            )
        if placement.slow or placement.device_kind == "slice":
            raise UserError(
                "slow ranks and slices are not available on real hosts; leave out --slow and --device-kind slice"
            )
        self._check_size(placement)
        ranks_on, servers_on = assign(self.present, placement.devices, placement.servers)
        kind = placement.device_kind
        enough_gpus = all(host.gpus >= ranks_on.count(host.number) for host in self.present)
        if kind == "auto":
            kind = "cuda" if enough_gpus else "cpu"
        elif kind == "cuda" and not enough_gpus:
            short = next(host for host in self.present if host.gpus < ranks_on.count(host.number))
            raise UserError(
                f"{ranks_on.count(short.number)} ranks need CUDA devices on {short.name}, which has {short.gpus}; use "
                "--device-kind cpu"
            )
        return replace(placement, device_kind=kind, hosts=len(set(ranks_on)), ranks_on=ranks_on, servers_on=servers_on)

    def _check_size(self, placement: Placement) -> None:
        needed = placement.devices + placement.servers
        if needed <= self.size:
            return
        what = f"{placement.devices} device{'s' * (placement.devices > 1)}" + (
            f" and {placement.servers} server{'s' * (placement.servers > 1)}" if placement.servers else ""
        )
        if self.lost:
            names = ", ".join(f"{self.name_of(number)} ({why})" for number, why in self.lost.items())
            raise RunFailed(f"{what} need {needed} ranks and {self.size} remain, because a host was lost: {names}")
        raise UserError(
            f"{what} need {needed} ranks and this run has {self.size}, on {len(self.present)} "
            f"host{'s' * (len(self.present) > 1)}; use fewer --devices, or start more ranks"
        )


def assign(hosts: Sequence[RealHost], devices: int, servers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the host of every device and of every server.

    Every server takes one rank, one server per host where possible and the last hosts first. Devices fill the remaining
    ranks, the first hosts first, so that servers have hosts of their own if the devices leave some free.
    """
    free = {host.number: host.devices for host in hosts}
    servers_on: list[int] = []
    while len(servers_on) < servers:
        for number in reversed(free):
            if free[number] and len(servers_on) < servers:
                free[number] -= 1
                servers_on.append(number)
    ranks_on = [number for number, count in free.items() for _ in range(count)][:devices]
    return tuple(ranks_on), tuple(servers_on)


_current: list[RealHosts] = []


def real_hosts() -> RealHosts | None:
    """Return the real hosts that this process commands; None in a run on one machine."""
    return _current[-1] if _current else None


@contextmanager
def commanding(hosts: RealHosts) -> Iterator[None]:
    """Use these hosts for all sessions that are opened in the block."""
    _current.append(hosts)
    try:
        yield
    finally:
        _current.remove(hosts)
