"""The plan shared by strategies whose parameters live on servers: gradients pushed and weights pulled, by the piece."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from scalewise.collectives import point_to_point
from scalewise.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.pieces import Piece, pieces_of
from scalewise.strategies.shares import alike_shares

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
    alike = alike_shares(batch, workers)
    total = sum(footprint.parameter_bytes) // ELEMENT_BYTES
    pieces = pieces_of(total, ELEMENT_BYTES, servers, piece_MB)

    def every(
        phase: str, after: dict[int, tuple[int, ...]], share: float = 1.0, moved_bytes: int = 0
    ) -> dict[int, tuple[int, ...]]:
        return {
            first: builder.compute(phase, first, samples, after[first], share, count, moved_bytes)
            for first, count, samples in alike
        }

    done = every("load", {first: () for first, _, _ in alike})
    for server in range(servers):
        builder.transfer("push", point_to_point("gloo", 0, workers + server, HEADER_BYTES), {}, workers)
    for phase in ("forward", "loss"):
        done = every(phase, done)
    for piece, passed in zip(reversed(pieces), backward_shares(footprint, pieces), strict=True):
        share = piece.elements / total
        size, server = piece.elements * ELEMENT_BYTES, workers + piece.server
        done = every("backward", done, passed, 2 * size)  # a gradient is read, and written to where it leaves from
        arrived: tuple[int, ...] = ()
        for first, count, _ in alike:
            arrived += builder.transfer("push", point_to_point("gloo", first, server, size), done, count)[server]
        summed = 3 * (workers - 1) * size
        updated = {server: builder.compute("update", server, batch, arrived, share, moved_bytes=summed)}
        builder.transfer("pull", point_to_point("gloo", server, 0, size), updated, workers)
    return builder.plan()


def backward_shares(footprint: Footprint, pieces: Sequence[Piece]) -> list[float]:
    """The part of backward that passes until all gradients of a piece are there, after the piece before it: the last
    piece is the first."""
    total = pieces[-1].stop
    if not footprint.ready:
        return [piece.elements / total for piece in reversed(pieces)]
    ends = list(accumulate(size / ELEMENT_BYTES for size in footprint.parameter_bytes))
    last = len(ends) - 1  # a published model's bytes need be no whole elements
    groups = [
        range(min(bisect_right(ends, total - piece.stop), last), min(bisect_left(ends, total - piece.start), last) + 1)
        for piece in reversed(pieces)
    ]
    return footprint.backward_shares(groups)
