"""Plan of training with parameter servers, and the pieces in which parameters are sent."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from scalewise.hardware.collectives import point_to_point
from scalewise.strategies.plan import Footprint, Plan, PlanBuilder, alike_shares, split
from scalewise.strategies.rank_memory import LayerMemories, RankMemory, TrainingRun, weights_of

MB = 2**20


@dataclass(frozen=True)
class Piece:
    """Consecutive elements of the concatenated parameters, and the server that holds them."""

    start: int
    stop: int
    server: int

    @property
    def elements(self) -> int:
        return self.stop - self.start


def pieces_of(elements: int, element_bytes: int, servers: int, piece_MB: float) -> tuple[Piece, ...]:
    """Split the parameters into equal pieces of at most `piece_MB`, assigned to servers in turn.

    Every server holds the same number of bytes, from all layers.
    """
    rounds = max(1, -(-elements * element_bytes // int(servers * piece_MB * MB)))
    count = min(servers * rounds, elements)
    slices = [split(elements, count, number) for number in range(count)]
    return tuple(Piece(piece.start, piece.stop, number % servers) for number, piece in enumerate(slices))


ELEMENT_BYTES = 4
HEADER_BYTES = 8
SIMULATED_PIECES = 256
"""Most pieces per server in a simulated step; more change the predicted time by less than 1 %."""


def simulated_piece_MB(footprint: Footprint, servers: int, piece_MB: float, most: int = SIMULATED_PIECES) -> float:
    """Size of pieces of which a server has at most `most`, so that large models are simulated fast."""
    return max(piece_MB, sum(footprint.parameter_bytes) / MB / (servers * most))


def served_plan(footprint: Footprint, workers: int, batch: int, servers: int, piece_MB: float) -> Plan:
    """Plan one synchronous step. Ranks 0 to N-1 are workers; servers follow.

    A piece is pushed when its gradients are complete, updated when it has arrived from all workers, and pulled at once,
    while backward computes the next pieces.

    worker  forward | backward 2 | backward 1 | backward 0 |
    links                        | push 2     | pull 2, push 1 | pull 1, push 0 | pull 0 |
    server                                    | update 2   | update 1 ...
    """
    builder = PlanBuilder()
    ranks = alike_shares(batch, workers)
    total = sum(footprint.parameter_bytes) // ELEMENT_BYTES
    pieces = pieces_of(total, ELEMENT_BYTES, servers, piece_MB)

    def compute_all(
        phase: str, after: dict[int, tuple[int, ...]], share: float = 1.0, moved_bytes: int = 0
    ) -> dict[int, tuple[int, ...]]:
        return {
            first: builder.compute(phase, first, samples, after[first], share, count, moved_bytes)
            for first, count, samples in ranks
        }

    done = compute_all("load", {first: () for first, _, _ in ranks})
    for server in range(servers):
        builder.transfer("push", point_to_point("gloo", 0, workers + server, HEADER_BYTES), {}, workers)
    for phase in ("forward", "loss"):
        done = compute_all(phase, done)
    for piece, passed in zip(reversed(pieces), backward_shares(footprint, pieces), strict=True):
        share = piece.elements / total
        size, server = piece.elements * ELEMENT_BYTES, workers + piece.server
        done = compute_all("backward", done, passed, 2 * size)  # a gradient is copied to its send buffer
        arrived: tuple[int, ...] = ()
        for first, count, _ in ranks:
            arrived += builder.transfer("push", point_to_point("gloo", first, server, size), done, count)[server]
        summed = 3 * (workers - 1) * size
        updated = {server: builder.compute("update", server, batch, arrived, share, moved_bytes=summed)}
        builder.transfer("pull", point_to_point("gloo", server, 0, size), updated, workers)
    return builder.plan()


def backward_shares(footprint: Footprint, pieces: Sequence[Piece]) -> list[float]:
    """Part of backward between the completion of the previous piece's gradients and that of each piece.

    Pieces are completed from the last to the first.
    """
    total = pieces[-1].stop
    if not footprint.ready:
        return [piece.elements / total for piece in reversed(pieces)]
    ends = list(accumulate(size / ELEMENT_BYTES for size in footprint.parameter_bytes))
    last = len(ends) - 1  # the bytes of a published model may not be whole elements
    groups = [
        range(min(bisect_right(ends, total - piece.stop), last), min(bisect_left(ends, total - piece.start), last) + 1)
        for piece in reversed(pieces)
    ]
    return footprint.backward_shares(groups)


def worker_memory(run: TrainingRun, layers: LayerMemories) -> RankMemory:
    """Memory of a worker. Receive buffers of weights and send buffers of gradients are in host memory."""
    inputs = run.inputs(run.part_of_share)
    if run.on_gpu:
        return RankMemory(layers, inputs, updates=False, gradients="leave")
    return RankMemory(layers, inputs, updates=False, gradients="stay", buffer_bytes=weights_of(layers))
