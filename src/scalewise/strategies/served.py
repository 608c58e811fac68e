"""The plan shared by strategies whose parameters live on servers: gradients pushed and weights pulled, by the piece."""

from __future__ import annotations

from scalewise.collectives import point_to_point
from scalewise.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.pieces import pieces_of
from scalewise.strategies.shares import share_sizes

ELEMENT_BYTES = 4
HEADER_BYTES = 8


def served_plan(footprint: Footprint, workers: int, batch: int, servers: int, piece_MB: float) -> Plan:
    """Ranks 0 to N-1 are workers, servers follow. A piece is pushed when backward has come to its start, updated when
    all workers' have arrived, and pulled at once, while the pieces before it are still being computed.

    worker  forward | backward 2 | backward 1 | backward 0 |
    links                        | push 2     | pull 2, push 1 | pull 1, push 0 | pull 0 |
    server                                    | update 2   | update 1 ...
    """
    builder = PlanBuilder()
    samples = share_sizes(batch, workers)
    ranks = range(workers)
    total = sum(footprint.parameter_bytes) // ELEMENT_BYTES
    pieces = pieces_of(total, ELEMENT_BYTES, servers, piece_MB)
    done = {rank: builder.compute("load", rank, samples[rank]) for rank in ranks}
    for rank in ranks:
        for server in range(servers):
            builder.transfer("push", point_to_point("gloo", rank, workers + server, HEADER_BYTES), {})
    for phase in ("forward", "loss"):
        done = {rank: builder.compute(phase, rank, samples[rank], done[rank]) for rank in ranks}
    for piece in reversed(pieces):
        share = piece.elements / total
        size, server = piece.elements * ELEMENT_BYTES, workers + piece.server
        done = {rank: builder.compute("backward", rank, samples[rank], done[rank], share) for rank in ranks}
        arrived: tuple[int, ...] = ()
        for rank in ranks:
            arrived += builder.transfer("push", point_to_point("gloo", rank, server, size), done)[server]
        updated = {server: builder.compute("update", server, batch, arrived, share)}
        for rank in ranks:
            builder.transfer("pull", point_to_point("gloo", server, rank, size), updated)
    return builder.plan()
