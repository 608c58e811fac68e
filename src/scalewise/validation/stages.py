"""A model cut into equal stages, a batch into micro-batches, as a plan: all forward, then all backward."""

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

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "nccl") -> Plan:  # noqa: ARG002
        builder = PlanBuilder()
        share = 1 / devices / self.micro_batches
        done: dict[tuple[int, int], tuple[int, ...]] = {}
        for micro in range(self.micro_batches):
            before: tuple[int, ...] = ()
            for stage in range(devices):
                before = builder.compute("forward", stage, batch, before, share)
                done[stage, micro] = before
        for micro in range(self.micro_batches):
            after = done[devices - 1, micro]
            for stage in reversed(range(devices)):
                after = builder.compute("backward", stage, batch, after + done[stage, micro], share)
        return builder.plan()
