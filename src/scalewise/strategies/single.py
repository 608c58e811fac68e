"""One device: what every other strategy is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scalewise.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.strategy import Backend


@dataclass(frozen=True)
class Single:
    """Load, forward, loss, backward, update, one after the other; nothing is sent."""

    name: ClassVar[str] = "single"
    summary: ClassVar[str] = "one device; the reference"

    exact: ClassVar[bool] = True

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:  # noqa: ARG002
        """The phases in their order, each on the whole batch."""
        builder = PlanBuilder()
        done: tuple[int, ...] = ()
        for phase in ("load", "forward", "loss", "backward", "update"):
            done = builder.compute(phase, 0, batch, done)
        return builder.plan()
