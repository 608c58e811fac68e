"""Point-to-point sends of gloo's collectives over TCP.

gloo sends a message of n bytes as three: a notice of the sender (48 bytes), an answer of the receiver (48 bytes), and a
header (48 bytes) followed by the n bytes. Reductions split a rank's chunk into at least two segments of at most 1 MiB,
each a message. Here all segments of a chunk are one `Send`, including their headers.
"""

from __future__ import annotations

from collections.abc import Callable

from scalewise.hardware.transfers import Send

_HEADER_BYTES = 48
_LARGEST_SEGMENT_BYTES = 1024 * 1024
_ELEMENT_BYTES = 4
"""Tensors are split between elements. float32 is assumed; with other types the split differs by a few bytes."""

Chunk = tuple[int, int]
"""Payload bytes and the number of messages that carry them."""


def broadcast(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """Return the sends of a binomial tree: in each round, every rank with the tensor sends it to one without."""
    sends: list[Send] = []
    received_by: dict[int, tuple[int, ...]] = {0: ()}  # rank relative to the root -> index of the send that it received
    stride = 1
    while stride < ranks:
        for place in range(min(stride, ranks - stride)):
            source, target = (place + root) % ranks, (place + stride + root) % ranks
            sends.append(_send(source, target, (bytes, 1), received_by[place]))
            received_by[place + stride] = (len(sends) - 1,)
        stride *= 2
    return tuple(sends)


def all_reduce(ranks: int, bytes: int, _root: int) -> tuple[Send, ...]:
    """Return the sends of a ring towards lower ranks: reduce-scatter, then all-gather, (N-1)/N of the tensor each."""
    per_rank = max(_divide_up(_divide_up(bytes, _LARGEST_SEGMENT_BYTES), ranks), 2)
    segment_bytes = _round_up_to_element(_divide_up(bytes, per_rank * ranks))

    def chunk(step: int, rank: int) -> Chunk:
        first = rank + 1 + step if step < ranks - 1 else rank + step - (ranks - 1)
        return _segments(bytes, segment_bytes, first % ranks * per_rank, per_rank)

    return tuple(_ring(ranks, 2 * (ranks - 1), -1, chunk))


def reduce_scatter(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """Return the sends of an all-reduce of the whole tensor, of which c10d then keeps a shard.

    This holds for `reduce_scatter_tensor`, which FSDP uses. `reduce_scatter` of a list all-reduces the shards one by
    one: the same payload, N times the headers.
    """
    return all_reduce(ranks, ranks * _shard(ranks, bytes), root)


def reduce(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """Return the sends of a ring reduce-scatter, after which every rank sends its chunk to the root.

    gloo's loop ends two segments before a full turn of the ring instead of one chunk before. Chunks of more than two
    segments (tensors above 2 MiB per rank) therefore send the other segments once more than needed.
    """
    segment_bytes = _round_up_to_element(min(_divide_up(bytes, 2 * ranks), _LARGEST_SEGMENT_BYTES))
    per_rank = max(_divide_up(_divide_up(bytes, segment_bytes), ranks), 2)

    def chunk(step: int, rank: int) -> Chunk:
        count = per_rank if step < ranks - 1 else per_rank - 2
        return _segments(bytes, segment_bytes, (rank + 1 + step) % ranks * per_rank, count)

    sends = _ring(ranks, ranks, -1, chunk)
    last_received = {send.target: position for position, send in enumerate(sends)}
    for rank in range(ranks):
        payload, _ = _segments(bytes, segment_bytes, rank * per_rank, per_rank)
        if rank != root and payload:
            sends.append(_send(rank, root, (payload, 1), (last_received[rank],)))
    return tuple(sends)


def all_gather(ranks: int, bytes: int, _root: int) -> tuple[Send, ...]:
    """Return the sends of an all-gather: every rank passes shards on to the next higher one, each in two halves."""
    return tuple(_ring(ranks, ranks - 1, +1, lambda *_: (_shard(ranks, bytes), 2)))


def gather(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """Return the sends in which every rank sends its shard to the root."""
    return tuple(_send(rank, root, (_shard(ranks, bytes), 1)) for rank in range(ranks) if rank != root)


def scatter(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """Return the sends in which the root sends every rank its shard."""
    return tuple(_send(root, rank, (_shard(ranks, bytes), 1)) for rank in range(ranks) if rank != root)


def send(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """Return the send of the tensor from the root to the next rank."""
    return (_send(root, (root + 1) % ranks, (bytes, 1)),)


def _send(source: int, target: int, chunk: Chunk, after: tuple[int, ...] = ()) -> Send:
    payload, messages = chunk
    return Send(source, target, payload + 2 * _HEADER_BYTES * messages, _HEADER_BYTES * messages, after)


def _ring(ranks: int, steps: int, direction: int, chunk: Callable[[int, int], Chunk]) -> list[Send]:
    """Return the sends of a ring: in each step, every rank sends `chunk(step, rank)` after it received the last one."""
    sends: list[Send] = []
    last_received: dict[int, tuple[int, ...]] = {}
    for step in range(steps):
        received: dict[int, tuple[int, ...]] = {}
        for rank in range(ranks):
            payload, messages = chunk(step, rank)
            if messages:
                target = (rank + direction) % ranks
                received[target] = (len(sends),)
                sends.append(_send(rank, target, (payload, messages), last_received.get(rank, ())))
        last_received |= received
    return sends


def _segments(bytes: int, segment_bytes: int, first: int, count: int) -> Chunk:
    """Return the chunk of `count` segments from number `first`; short or empty beyond the end of the tensor."""
    payload = max(0, min(bytes - first * segment_bytes, count * segment_bytes))
    return payload, _divide_up(payload, segment_bytes)


def _shard(ranks: int, bytes: int) -> int:
    return _round_up_to_element(_divide_up(bytes, ranks))


def _round_up_to_element(bytes: int) -> int:
    return _divide_up(bytes, _ELEMENT_BYTES) * _ELEMENT_BYTES


def _divide_up(value: int, divisor: int) -> int:
    return -(-value // divisor)
