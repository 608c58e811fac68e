"""Single device, the baseline of all other strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from scalewise.hardware.collectives import Backend
from scalewise.strategies.base import SessionKind, Strategy
from scalewise.strategies.plan import Footprint, Plan, PlanBuilder


@dataclass(frozen=True)
class Single(Strategy):
    """Training on one device, without communication."""

    name: ClassVar[str] = "single"
    summary: ClassVar[str] = "one device; the baseline of all other strategies"

    reference: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    executions: ClassVar[Mapping[str, Sequence[str]]] = {}
    session_kind: ClassVar[SessionKind] = SessionKind.ONE_PROCESS

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:  # noqa: ARG002
        """Plan the phases of one step, one after the other."""
        builder = PlanBuilder()
        done: tuple[int, ...] = ()
        for phase in ("load", "forward", "loss", "backward", "update"):
            done = builder.compute(phase, 0, batch, done)
        return builder.plan()
