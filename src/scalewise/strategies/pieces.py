"""How parameters are cut into pieces and shared out among servers: decided here, for plans and engines alike."""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.strategies.shares import split

MB = 2**20


@dataclass(frozen=True)
class Piece:
    """A run of elements of all parameters laid end to end, and the server that holds it."""

    start: int
    stop: int
    server: int

    @property
    def elements(self) -> int:
        return self.stop - self.start


def pieces_of(elements: int, element_bytes: int, servers: int, piece_MB: float) -> tuple[Piece, ...]:
    """Equal pieces of at most `piece_MB`, dealt out in turn: every server holds the same bytes, from all layers."""
    rounds = max(1, -(-elements * element_bytes // int(servers * piece_MB * MB)))
    count = min(servers * rounds, elements)
    cuts = [split(elements, count, number) for number in range(count)]
    return tuple(Piece(cut.start, cut.stop, number % servers) for number, cut in enumerate(cuts))
