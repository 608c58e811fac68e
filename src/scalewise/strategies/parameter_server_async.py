"""Asynchronous parameter servers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from scalewise.core.errors import UserError
from scalewise.hardware.collectives import Backend, point_to_point
from scalewise.strategies.base import AT_LEAST, IF_NONE, LEAST_PIECE_MB, SessionKind, Strategy
from scalewise.strategies.parameter_server import PIECE_MB
from scalewise.strategies.plan import Footprint, Plan, PlanBuilder, share_sizes
from scalewise.strategies.rank_memory import LayerMemories, RankMemory, TrainingRun
from scalewise.strategies.server_plan import (
    ELEMENT_BYTES,
    HEADER_BYTES,
    Piece,
    backward_shares,
    pieces_of,
    served_plan,
    simulated_piece_MB,
    worker_memory,
)

PIECES_OF_ROUNDS = 24
"""Most pieces per server in a plan of many rounds; more change the predicted time of a round by less than 5 %."""


def rounds_plan(footprint: Footprint, workers: int, batch: int, servers: int, piece_MB: float, rounds: int) -> Plan:
    """Plan `rounds` pushes and pulls of every worker. Ranks and bytes per round are those of `served_plan`.

    A server applies a push and answers it once the whole push has arrived, header last. A worker that dies during a
    push therefore leaves nothing half-applied.

    worker 0  backward 1 | backward 0 |                            | forward ...
    links                | push 1     | push 0 |          | pull 1, pull 0 |
    server                                     | update 0 | update 1 (of worker 1) ...
    """
    builder = PlanBuilder()
    total = sum(footprint.parameter_bytes) // ELEMENT_BYTES
    in_order = pieces_of(total, ELEMENT_BYTES, servers, piece_MB)
    pieces, shares = in_order[::-1], backward_shares(footprint, in_order)
    pieces_of_server = {server: [piece for piece in pieces if piece.server == server] for server in range(servers)}
    for rank, samples in enumerate(share_sizes(batch, workers)):
        pulled: tuple[int, ...] = ()
        for _ in range(rounds):
            done = builder.compute("load", rank, samples, pulled)
            for phase in ("forward", "loss"):
                done = builder.compute(phase, rank, samples, done)
            arrived: dict[int, tuple[int, ...]] = dict.fromkeys(pieces_of_server, ())
            for piece, share in zip(pieces, shares, strict=True):
                size, server = piece.elements * ELEMENT_BYTES, workers + piece.server
                done = builder.compute("backward", rank, samples, done, share, moved_bytes=2 * size)
                pushed = builder.transfer("push", point_to_point("gloo", rank, server, size), {rank: done})
                arrived[piece.server] += pushed[server]
            for number in pieces_of_server:
                header = point_to_point("gloo", rank, workers + number, HEADER_BYTES)
                arrived[number] += builder.transfer("push", header, {rank: done})[workers + number]
            pulled = done
            for number, own in pieces_of_server.items():
                elements, server = sum(piece.elements for piece in own), workers + number
                if not own:
                    continue
                # The answer is a copy, because other pushes may change the weights while it is sent.
                copied = 2 * elements * ELEMENT_BYTES
                updated = builder.compute(
                    "update", server, samples, arrived[number], elements / total, moved_bytes=copied
                )
                for piece in own:
                    sends = point_to_point("gloo", server, rank, piece.elements * ELEMENT_BYTES)
                    pulled += builder.transfer("pull", sends, {server: updated})[rank]
    return builder.plan()


@dataclass(frozen=True)
class ParameterServerAsync(Strategy):
    """Parameter servers whose workers do not wait for each other, so gradients may come from stale weights."""

    name: ClassVar[str] = "parameter-server-async"
    summary: ClassVar[str] = (
        "parameter servers whose workers do not wait for each other: each gradient is applied on arrival, at a "
        "fraction of the learning rate"
    )
    session_kind: ClassVar[SessionKind] = SessionKind.RANKS_AND_SERVERS
    updates_on_host: ClassVar[bool] = True

    servers: int = 1
    """Number of server processes; each holds the same number of bytes of parameters."""
    piece_MB: float = field(default=PIECE_MB, metadata={AT_LEAST: LEAST_PIECE_MB})
    """Size in MiB of the pieces in which parameters are sent."""
    max_staleness: int | None = field(default=None, metadata={AT_LEAST: 0, IF_NONE: "unbounded if not given"})
    """Largest number of updates between a worker's pull and the application of its gradient; 0: synchronous."""
    replacements: int = field(default=0, metadata={AT_LEAST: 0})
    """Largest number of dead workers that are replaced during a run."""

    def __post_init__(self) -> None:
        if self.exact and self.replacements:
            raise UserError(
                f"replacements={self.replacements} is not possible with max_staleness=0: synchronous workers wait for "
                "each other, so a dead worker ends the run; use replacements=0, or max_staleness=1 or more"
            )

    @property
    def exact(self) -> bool:
        return self.max_staleness == 0

    @property
    def asynchronous(self) -> bool:
        return not self.exact

    def pieces(self, elements: int, element_bytes: int) -> tuple[Piece, ...]:
        return pieces_of(elements, element_bytes, self.servers, self.piece_MB)

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:  # noqa: ARG002
        """Plan one push and one pull of every worker."""
        if devices == 1 and not self.exact:
            return self.rounds(footprint, devices, batch, rounds=1)
        return served_plan(footprint, devices, batch, self.servers, self.piece_MB)

    def simulated(self, footprint: Footprint) -> ParameterServerAsync:
        return replace(self, piece_MB=simulated_piece_MB(footprint, self.servers, self.piece_MB))

    def rounds(self, footprint: Footprint, devices: int, batch: int, rounds: int) -> Plan:
        """Plan many pushes and pulls, during which workers get out of step with each other.

        Large models are planned with larger pieces, so that the simulation takes about a second.
        """
        piece_MB = simulated_piece_MB(footprint, self.servers, self.piece_MB, PIECES_OF_ROUNDS)
        return rounds_plan(footprint, devices, batch, self.servers, piece_MB, rounds)

    def rank_memory(self, rank: int, run: TrainingRun, layers: LayerMemories) -> RankMemory:  # noqa: ARG002
        return worker_memory(run, layers)
