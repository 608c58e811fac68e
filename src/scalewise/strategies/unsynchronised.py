"""Several rounds of workers who wait for nobody: each pulls, computes and pushes; servers update as pushes arrive."""

from __future__ import annotations

from scalewise.collectives import point_to_point
from scalewise.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.pieces import pieces_of
from scalewise.strategies.served import ELEMENT_BYTES, HEADER_BYTES, backward_shares
from scalewise.strategies.shares import share_sizes


def rounds_plan(footprint: Footprint, workers: int, batch: int, servers: int, piece_MB: float, rounds: int) -> Plan:
    """Ranks as in `served_plan`; what a worker sends in a round is what it sends there. A server applies a push when
    all of it has come, the header last, and answers then: a worker that dies in the middle of one leaves nothing
    half-applied.

    worker 0  backward 1 | backward 0 |                            | forward ...
    links                | push 1     | push 0 |          | pull 1, pull 0 |
    server                                     | update 0 | update 1 (of worker 1) ...
    """
    builder = PlanBuilder()
    total = sum(footprint.parameter_bytes) // ELEMENT_BYTES
    in_order = pieces_of(total, ELEMENT_BYTES, servers, piece_MB)
    pieces, shares = in_order[::-1], backward_shares(footprint, in_order)
    held = {server: [piece for piece in pieces if piece.server == server] for server in range(servers)}
    for rank, samples in enumerate(share_sizes(batch, workers)):
        pulled: tuple[int, ...] = ()
        for _ in range(rounds):
            done = builder.compute("load", rank, samples, pulled)
            for phase in ("forward", "loss"):
                done = builder.compute(phase, rank, samples, done)
            arrived: dict[int, tuple[int, ...]] = dict.fromkeys(held, ())
            for piece, share in zip(pieces, shares, strict=True):
                size, server = piece.elements * ELEMENT_BYTES, workers + piece.server
                done = builder.compute("backward", rank, samples, done, share, moved_bytes=2 * size)
                pushed = builder.transfer("push", point_to_point("gloo", rank, server, size), {rank: done})
                arrived[piece.server] += pushed[server]
            for number in held:
                header = point_to_point("gloo", rank, workers + number, HEADER_BYTES)
                arrived[number] += builder.transfer("push", header, {rank: done})[workers + number]
            pulled = done
            for number, own in held.items():
                elements, server = sum(piece.elements for piece in own), workers + number
                if not own:
                    continue
                copied = 2 * elements * ELEMENT_BYTES  # others may change the weights while they travel
                updated = builder.compute(
                    "update", server, samples, arrived[number], elements / total, moved_bytes=copied
                )
                for piece in own:
                    sends = point_to_point("gloo", server, rank, piece.elements * ELEMENT_BYTES)
                    pulled += builder.transfer("pull", sends, {server: updated})[rank]
    return builder.plan()
