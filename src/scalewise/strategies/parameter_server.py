"""Synchronous parameter servers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from scalewise.hardware.collectives import Backend
from scalewise.strategies.base import AT_LEAST, LEAST_PIECE_MB, SessionKind, Strategy
from scalewise.strategies.plan import Footprint, Plan
from scalewise.strategies.rank_memory import LayerMemories, RankMemory, TrainingRun
from scalewise.strategies.server_plan import Piece, pieces_of, served_plan, simulated_piece_MB, worker_memory

PIECE_MB = 6.0


@dataclass(frozen=True)
class ParameterServer(Strategy):
    """Workers push gradients to servers and pull weights from them.

    Each of k servers transfers 2 S N / k bytes per step, for S bytes of parameters and N workers.
    """

    name: ClassVar[str] = "parameter-server"
    summary: ClassVar[str] = "weights and optimizer on server processes; workers push gradients and pull weights"
    exact: ClassVar[bool] = True
    session_kind: ClassVar[SessionKind] = SessionKind.RANKS_AND_SERVERS
    updates_on_host: ClassVar[bool] = True

    servers: int = 1
    """Number of server processes; each holds the same number of bytes of parameters, large tensors are split."""
    piece_MB: float = field(default=PIECE_MB, metadata={AT_LEAST: LEAST_PIECE_MB})
    """Size in MiB of the pieces in which parameters are sent, so that pushes, updates, pulls and backward overlap."""

    def pieces(self, elements: int, element_bytes: int) -> tuple[Piece, ...]:
        return pieces_of(elements, element_bytes, self.servers, self.piece_MB)

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:  # noqa: ARG002
        """Plan one step. Servers use host memory, so messages use gloo even if the workers' devices are GPUs."""
        return served_plan(footprint, devices, batch, self.servers, self.piece_MB)

    def simulated(self, footprint: Footprint) -> ParameterServer:
        return replace(self, piece_MB=simulated_piece_MB(footprint, self.servers, self.piece_MB))

    def rank_memory(self, rank: int, run: TrainingRun, layers: LayerMemories) -> RankMemory:  # noqa: ARG002
        return worker_memory(run, layers)
