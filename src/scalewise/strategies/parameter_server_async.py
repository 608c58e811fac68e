"""Parameter servers, asynchronous: every worker's gradient is applied as it arrives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from scalewise.errors import UserError
from scalewise.plan import Footprint, Plan
from scalewise.strategies.parameter_server import PIECE_MB
from scalewise.strategies.served import served_plan
from scalewise.strategies.strategy import AT_LEAST, IF_NONE, LEAST_PIECE_MB, Backend
from scalewise.strategies.unsynchronised import rounds_plan


@dataclass(frozen=True)
class ParameterServerAsync:
    """Nobody waits for anybody, so a gradient may be computed from weights that are no longer the latest."""

    name: ClassVar[str] = "parameter-server-async"
    summary: ClassVar[str] = "the same, asynchronous: gradients are applied on arrival, at part of the learning rate"

    servers: int = 1
    """As for parameter-server, and so is the next."""
    piece_MB: float = field(default=PIECE_MB, metadata={AT_LEAST: LEAST_PIECE_MB})
    max_staleness: int | None = field(default=None, metadata={AT_LEAST: 0, IF_NONE: "unbounded if not given"})
    """Versions there may be between a worker's pull and its update; 0 is synchronous."""
    replacements: int = field(default=0, metadata={AT_LEAST: 0})
    """Workers started in place of ones that died, at most."""

    def __post_init__(self) -> None:
        if self.exact and self.replacements:
            raise UserError(
                f"replacements={self.replacements} is not possible with max_staleness=0: synchronous workers wait for "
                "each other, and a death ends the run; valid: replacements=0, or a max_staleness of 1 or more"
            )

    @property
    def exact(self) -> bool:
        return self.max_staleness == 0

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:  # noqa: ARG002
        """One push and pull by each worker: what N steps send."""
        if devices == 1 and not self.exact:
            return self.rounds(footprint, devices, batch, rounds=1)
        return served_plan(footprint, devices, batch, self.servers, self.piece_MB)

    def rounds(self, footprint: Footprint, devices: int, batch: int, rounds: int) -> Plan:
        """Many of them, in which workers drift apart."""
        return rounds_plan(footprint, devices, batch, self.servers, self.piece_MB, rounds)
