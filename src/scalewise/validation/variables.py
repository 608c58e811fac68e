"""Where TensorFlow's benchmarks of 2017 kept variables, as plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scalewise.collectives.collective import Collective
from scalewise.collectives.send import Send
from scalewise.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.buckets import buckets_of
from scalewise.strategies.mirrored import Mirrored
from scalewise.strategies.shares import share_sizes
from scalewise.strategies.strategy import Backend, Strategy

PIECE_MB = 25.0


@dataclass(frozen=True)
class OnHost:
    """Every device fetches all variables from host memory and gives its gradients back there."""

    name: ClassVar[str] = "variables on host"
    summary: ClassVar[str] = "TensorFlow's parameter_server on the CPU"
    exact: ClassVar[bool] = True

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "nccl") -> Plan:  # noqa: ARG002
        builder = PlanBuilder()
        groups = buckets_of(footprint.parameter_bytes, PIECE_MB)
        sizes = [sum(footprint.parameter_bytes[position] for position in group) for group in groups]
        shares = footprint.backward_shares(groups)
        memory = devices
        pushed: tuple[int, ...] = ()
        for rank, samples in enumerate(share_sizes(batch, devices)):
            done: tuple[int, ...] = ()
            for size, share in zip(reversed(sizes), reversed(shares), strict=True):
                fetched = builder.transfer("pull", [Send(memory, rank, size)], {})
                done = builder.compute("forward", rank, samples, done + fetched[rank], share)
            for size, share in zip(sizes, shares, strict=True):
                done = builder.compute("backward", rank, samples, done, share)
                pushed += builder.transfer("push", [Send(rank, memory, size)], {rank: done})[memory]
        builder.compute("update", memory, batch, pushed)
        return builder.plan()


@dataclass(frozen=True)
class OnServers:
    """Devices of a host add up their gradients; hosts send each part to the host that holds it, and get it back."""

    name: ClassVar[str] = "distributed servers"
    summary: ClassVar[str] = "TensorFlow's distributed_replicated"
    exact: ClassVar[bool] = True

    hosts: int = 1

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "nccl") -> Plan:
        builder = PlanBuilder()
        per_host = devices // self.hosts
        samples = -(-batch // devices)
        done = builder.compute("forward", 0, samples, count=devices)
        groups = buckets_of(footprint.parameter_bytes, PIECE_MB)
        for group, share in zip(groups, footprint.backward_shares(groups), strict=True):
            size = sum(footprint.parameter_bytes[position] for position in group)
            done = builder.compute("backward", 0, samples, done, share, count=devices)
            added = builder.collective("reduce", Collective("all_reduce", backend, per_host, size), done)
            part = -(-size // self.hosts)
            pairs = [(one, other) for one in range(self.hosts) for other in range(self.hosts) if one != other]
            arrived = dict.fromkeys(range(self.hosts), added)
            for one, other in pairs:
                sent = builder.transfer("push", [Send(one * per_host, devices + other, part)], {one * per_host: added})
                arrived[other] += sent[devices + other]
            updated = {
                devices + host: builder.compute("update", devices + host, batch, after)
                for host, after in arrived.items()
            }
            for one, other in pairs:
                builder.transfer("pull", [Send(devices + one, other * per_host, part)], updated)
        return builder.plan()


def strategy_for(variables: str, hosts: int) -> Strategy:
    """Variables dealt out over the devices move the bytes of an all-reduce over every link, too."""
    if variables == "variables on host":
        return OnHost()
    return OnServers(hosts) if variables == "distributed servers" else Mirrored()
