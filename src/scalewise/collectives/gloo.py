"""What gloo sends over TCP, as torch's c10d drives it; checked against the kernel's counters at N = 2, 3, 4.

A message of n bytes crosses as three: the sender's notice (48 bytes), the receiver's notice back (48 bytes), and a
header (48 bytes) with the n bytes. Reductions cut a rank's chunk into segments of at most 1 MiB, two per chunk at
least, each a message; here the segments of a chunk are one `Send`, their headers counted.
"""

from __future__ import annotations

from collections.abc import Callable

from scalewise.collectives.send import Send

_HEADER_BYTES = 48
_LARGEST_SEGMENT_BYTES = 1024 * 1024
_ELEMENT_BYTES = 4
"""Cuts fall between elements; float32 is assumed, and other types move a cut by a few bytes."""

Chunk = tuple[int, int]
"""Payload bytes, and the number of messages that carry them."""


def broadcast(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """A binomial tree: whoever has the tensor passes it on whole, to 1, 2, 4, ... ranks at a time."""
    made: list[Send] = []
    holds: dict[int, tuple[int, ...]] = {
        0: ()
    }  # places counted from the root -> the send that brought the tensor there
    stride = 1
    while stride < ranks:
        for place in range(min(stride, ranks - stride)):
            made.append(_send((place + root) % ranks, (place + stride + root) % ranks, (bytes, 1), holds[place]))
            holds[place + stride] = (len(made) - 1,)
        stride *= 2
    return tuple(made)


def all_reduce(ranks: int, bytes: int, _root: int) -> tuple[Send, ...]:
    """A ring towards lower ranks: reduce-scatter, then all-gather, (N-1)/N of the tensor each."""
    per_rank = max(_divide_up(_divide_up(bytes, _LARGEST_SEGMENT_BYTES), ranks), 2)
    segment_bytes = _whole_elements(_divide_up(bytes, per_rank * ranks))

    def chunk(step: int, rank: int) -> Chunk:
        first = rank + 1 + step if step < ranks - 1 else rank + step - (ranks - 1)
        return _segments(bytes, segment_bytes, first % ranks * per_rank, per_rank)

    return tuple(_ring(ranks, 2 * (ranks - 1), -1, chunk))


def reduce_scatter(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """c10d has gloo all-reduce the whole tensor, then keeps a shard.

    This is its form for one tensor (FSDP's); the form for a list of shards all-reduces them one by one: the same
    payload, N times the headers.
    """
    return all_reduce(ranks, ranks * _shard(ranks, bytes), root)


def reduce(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """The all-reduce's first ring, then every rank sends its chunk to the root.

    gloo's loop ends two segments before a full turn and not a chunk before: of chunks longer than two segments
    (tensors above 2 MiB per rank) the rest goes round once more, for nothing.
    """
    segment_bytes = _whole_elements(min(_divide_up(bytes, 2 * ranks), _LARGEST_SEGMENT_BYTES))
    per_rank = max(_divide_up(_divide_up(bytes, segment_bytes), ranks), 2)

    def chunk(step: int, rank: int) -> Chunk:
        count = per_rank if step < ranks - 1 else per_rank - 2
        return _segments(bytes, segment_bytes, (rank + 1 + step) % ranks * per_rank, count)

    made = _ring(ranks, ranks, -1, chunk)
    arrived = {send.target: position for position, send in enumerate(made)}
    for rank in range(ranks):
        payload, _ = _segments(bytes, segment_bytes, rank * per_rank, per_rank)
        if rank != root and payload:
            made.append(_send(rank, root, (payload, 1), (arrived[rank],)))
    return tuple(made)


def all_gather(ranks: int, bytes: int, _root: int) -> tuple[Send, ...]:
    """A ring towards higher ranks, every shard in two halves."""
    return tuple(_ring(ranks, ranks - 1, +1, lambda *_: (_shard(ranks, bytes), 2)))


def gather(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """Every rank sends its shard to the root."""
    return tuple(_send(rank, root, (_shard(ranks, bytes), 1)) for rank in range(ranks) if rank != root)


def scatter(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """The root sends every rank its shard."""
    return tuple(_send(root, rank, (_shard(ranks, bytes), 1)) for rank in range(ranks) if rank != root)


def send(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """The root sends the tensor to the rank after it."""
    return (_send(root, (root + 1) % ranks, (bytes, 1)),)


def _send(source: int, target: int, chunk: Chunk, after: tuple[int, ...] = ()) -> Send:
    payload, messages = chunk
    return Send(source, target, payload + 2 * _HEADER_BYTES * messages, _HEADER_BYTES * messages, after)


def _ring(ranks: int, steps: int, towards: int, chunk: Callable[[int, int], Chunk]) -> list[Send]:
    """In every step each rank passes `chunk(step, rank)` to its neighbour, once the step before has reached it."""
    made: list[Send] = []
    arrived: dict[int, tuple[int, ...]] = {}
    for step in range(steps):
        reached: dict[int, tuple[int, ...]] = {}
        for rank in range(ranks):
            payload, messages = chunk(step, rank)
            if messages:
                target = (rank + towards) % ranks
                reached[target] = (len(made),)
                made.append(_send(rank, target, (payload, messages), arrived.get(rank, ())))
        arrived |= reached
    return made


def _segments(bytes: int, segment_bytes: int, first: int, count: int) -> Chunk:
    """`count` segments from the `first` one on, as far as the tensor reaches: the last ranks' may be short or empty."""
    payload = max(0, min(bytes - first * segment_bytes, count * segment_bytes))
    return payload, _divide_up(payload, segment_bytes)


def _shard(ranks: int, bytes: int) -> int:
    return _whole_elements(_divide_up(bytes, ranks))


def _whole_elements(bytes: int) -> int:
    return _divide_up(bytes, _ELEMENT_BYTES) * _ELEMENT_BYTES


def _divide_up(value: int, divisor: int) -> int:
    return -(-value // divisor)
