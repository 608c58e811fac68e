"""The schedule of our own ring all-reduce: what each rank sends to the next one, step by step.

The tensor is cut into one chunk per rank. In step s rank r sends chunk r - s to rank r + 1 and receives chunk r - s - 1
from rank r - 1 (modulo N). In the first N - 1 steps, the reduce-scatter, a rank adds what arrives to its own, and ends
with the whole sum of chunk r + 1; in the other N - 1, the all-gather, what arrives is final.

    chunk sent   reduce-scatter   all-gather
    step            0    1         2    3
    rank 0          0    2         1    0
    rank 1          1    0         2    1
    rank 2          2    1         0    2

What arrives in one step leaves in the next. Chunks are cut into pieces, so that it need not wait for a whole chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from scalewise.collectives.send import Send

MIB = 2**20

PIECE_MB = 2.0
"""Between CPU ranks pieces of 1 MB and of 4 MB take some 5 % longer, those of 0.5 MB a quarter."""

_ELEMENT_BYTES = 4
"""Cuts fall between elements; float32 is assumed, and other types move a cut by a few bytes."""


@dataclass(frozen=True)
class Schedule:
    """One rank's part in one all-reduce. Pieces are named by their position in the tensor; empty ones do not travel."""

    sizes: tuple[int, ...]
    """Elements of every piece of the tensor."""
    sent: tuple[tuple[int, ...], ...]
    """The pieces sent in each step."""
    received: tuple[tuple[int, ...], ...]
    """The pieces received in each step; each is sent in the step that follows."""

    @property
    def window(self) -> int:
        """How many pieces may be on their way to a rank: the first of them must be there when it has to leave again."""
        return max(1, min(map(len, self.sent + self.received)))


@lru_cache(maxsize=1024)
def schedule_of(ranks: int, rank: int, elements: int, element_bytes: int, piece_bytes: int) -> Schedule:
    sizes = piece_sizes(ranks, elements, element_bytes, piece_bytes)
    return Schedule(sizes, _sent(ranks, rank, sizes), _sent(ranks, rank - 1, sizes))


def piece_sizes(ranks: int, elements: int, element_bytes: int, piece_bytes: int) -> tuple[int, ...]:
    """Every chunk in as many pieces, all nearly equal, none above `piece_bytes` unless that is less than an element."""
    piece_elements = max(1, piece_bytes // element_bytes)
    count = ranks * max(1, -(-elements // (ranks * piece_elements)))
    cuts = [elements * number // count for number in range(count + 1)]
    return tuple(end - start for start, end in pairwise(cuts))


def _sent(ranks: int, rank: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    per_chunk = len(sizes) // ranks
    firsts = [(rank - step) % ranks * per_chunk for step in range(2 * (ranks - 1))]
    return tuple(tuple(piece for piece in range(first, first + per_chunk) if sizes[piece]) for first in firsts)


def ring_sends(ranks: int, bytes: int, piece_MB: float) -> tuple[Send, ...]:
    """What one all-reduce sends, one `Send` for each piece and step, after the one that brought the piece there."""
    elements, piece_bytes = -(-bytes // _ELEMENT_BYTES), int(piece_MB * MIB)
    schedules = [schedule_of(ranks, rank, elements, _ELEMENT_BYTES, piece_bytes) for rank in range(ranks)]
    made: list[Send] = []
    brought: dict[tuple[int, int], tuple[int, ...]] = {}
    for step in range(2 * (ranks - 1)):
        for rank, schedule in enumerate(schedules):
            target = (rank + 1) % ranks
            for piece in schedule.sent[step]:
                size_bytes = schedule.sizes[piece] * _ELEMENT_BYTES
                made.append(Send(rank, target, size_bytes, after=brought.get((rank, piece), ())))
                brought[target, piece] = (len(made) - 1,)
    return tuple(made)
