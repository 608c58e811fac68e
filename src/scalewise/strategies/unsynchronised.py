"""Several rounds of workers who wait for nobody: each pulls, computes and pushes; servers update as pushes arrive."""

from __future__ import annotations

from scalewise.collectives import point_to_point
from scalewise.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.pieces import pieces_of
from scalewise.strategies.served import ELEMENT_BYTES
from scalewise.strategies.shares import share_sizes


def rounds_plan(footprint: Footprint, workers: int, batch: int, servers: int, piece_MB: float, rounds: int) -> Plan:
    """Ranks as in `served_plan`; what a worker sends in a round is what it sends there.

    worker 0  round 0 | push | pull | round 1 ...
    worker 1  round 0         | push | pull | round 1 ...
    server            | update 0     | update 1 ...
    """
    builder = PlanBuilder()
    total = sum(footprint.parameter_bytes) // ELEMENT_BYTES
    pieces = list(reversed(pieces_of(total, ELEMENT_BYTES, servers, piece_MB)))
    for rank, samples in enumerate(share_sizes(batch, workers)):
        pulled: tuple[int, ...] = ()
        for _ in range(rounds):
            done = builder.compute("load", rank, samples, pulled)
            for phase in ("forward", "loss"):
                done = builder.compute(phase, rank, samples, done)
            pulled = ()
            for piece in pieces:
                share, size, server = piece.elements / total, piece.elements * ELEMENT_BYTES, workers + piece.server
                done = builder.compute("backward", rank, samples, done, share, moved_bytes=2 * size)
                arrived = builder.transfer("push", point_to_point("gloo", rank, server, size), {rank: done})[server]
                updated = builder.compute("update", server, samples, arrived, share)
                pulled += builder.transfer("pull", point_to_point("gloo", server, rank, size), {server: updated})[rank]
            pulled += done
    return builder.plan()
