"""A model cut into stages, a batch into micro-batches, as a plan: all forward, then all backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scalewise.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.strategy import Backend


@dataclass(frozen=True)
class Stages:
    """GPipe's schedule. Activations are left out: the published tables do not tell them."""

    name: ClassVar[str] = "stages"
    summary: ClassVar[str] = "consecutive layers on different devices"
    exact: ClassVar[bool] = True

    micro_batches: int = 1
    shares: tuple[float, ...] = ()
    """Of the model, stage by stage; empty: equal ones."""

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "nccl") -> Plan:  # noqa: ARG002
        builder = PlanBuilder()
        shares = [share / self.micro_batches for share in self.shares or (1 / devices,) * devices]
        done: dict[tuple[int, int], tuple[int, ...]] = {}
        for micro in range(self.micro_batches):
            before: tuple[int, ...] = ()
            for stage in range(devices):
                before = builder.compute("forward", stage, batch, before, shares[stage])
                done[stage, micro] = before
        for micro in range(self.micro_batches):
            after = done[devices - 1, micro]
            for stage in reversed(range(devices)):
                after = builder.compute("backward", stage, batch, after + done[stage, micro], shares[stage])
        return builder.plan()
