"""One device: what every other strategy is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scalewise.plan import Footprint, Operation, Plan
from scalewise.strategies.strategy import Backend


@dataclass(frozen=True)
class Single:
    """Load, forward, loss, backward, update, one after the other; nothing is sent."""

    name: ClassVar[str] = "single"
    summary: ClassVar[str] = "one device; the reference"

    exact: ClassVar[bool] = True

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:  # noqa: ARG002
        """The phases in their order, each on the whole batch."""
        order = ("load", "forward", "loss", "backward", "update")
        return Plan(
            tuple(
                Operation(phase, rank=0, after=(position - 1,) if position else (), samples=batch)
                for position, phase in enumerate(order)
            )
        )
