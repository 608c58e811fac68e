"""Parameter servers, synchronous: weights and optimizer live on servers, which average and update."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from scalewise.plan import Footprint, Plan
from scalewise.strategies.served import served_plan
from scalewise.strategies.strategy import AT_LEAST, LEAST_PIECE_MB, Backend

PIECE_MB = 6.0


@dataclass(frozen=True)
class ParameterServer:
    """Workers push gradients and pull weights: 2 S N / k at each of k servers, linear in the workers."""

    name: ClassVar[str] = "parameter-server"
    summary: ClassVar[str] = "weights and updates on servers of their own; workers push gradients, pull weights"
    exact: ClassVar[bool] = True

    servers: int = 1
    """Processes beside the workers; parameters are shared out among them by bytes, large tensors cut."""
    piece_MB: float = field(default=PIECE_MB, metadata={AT_LEAST: LEAST_PIECE_MB})
    """Parameters travel in pieces of this size, so that pushes, updates and pulls overlap each other and backward."""

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:  # noqa: ARG002
        """Servers are processes with host memory: gloo, whatever the workers' devices."""
        return served_plan(footprint, devices, batch, self.servers, self.piece_MB)
