"""Collectives: the point-to-point sends that a backend really makes for an operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

from scalewise.collectives import gloo, nccl
from scalewise.collectives.send import Send, busiest_bytes, received_bytes, sent_bytes, total_bytes
from scalewise.spec import unknown

__all__ = [
    "BACKENDS",
    "Send",
    "busiest_bytes",
    "point_to_point",
    "received_bytes",
    "sends",
    "sent_bytes",
    "total_bytes",
]

BACKENDS: Mapping[str, Mapping[str, Callable[[int, int, int], tuple[Send, ...]]]] = {
    "gloo": {
        "broadcast": gloo.broadcast,
        "reduce": gloo.reduce,
        "all_reduce": gloo.all_reduce,
        "all_gather": gloo.all_gather,
        "reduce_scatter": gloo.reduce_scatter,
        "gather": gloo.gather,
        "scatter": gloo.scatter,
        "send": gloo.send,
    },
    "nccl": {
        "broadcast": nccl.broadcast,
        "reduce": nccl.reduce,
        "all_reduce": nccl.all_reduce,
        "all_gather": nccl.all_gather,
        "reduce_scatter": nccl.reduce_scatter,
        "gather": nccl.gather,
        "scatter": nccl.scatter,
        "send": nccl.send,
    },
}


def sends(backend: str, operation: str, ranks: int, bytes: int, root: int = 0, hosts: int = 1) -> tuple[Send, ...]:
    """The sends of one collective, in an order in which they could happen.

    `bytes` is the whole tensor throughout: what every rank holds after an all-gather or before a reduce-scatter, and
    the root before a scatter or after a gather; a shard is its N-th part. A send goes from `root` to the next rank.
    `hosts` share the ranks evenly, in order; only NCCL asks.
    """
    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    if operation not in BACKENDS[backend]:
        raise unknown("operation", operation, BACKENDS[backend])
    if ranks == 1 or bytes == 0:
        return ()
    if backend == "nccl" and operation == "all_reduce" and nccl.prefers_tree(ranks, bytes, hosts):
        return nccl.tree_all_reduce(ranks, bytes, hosts)
    return BACKENDS[backend][operation](ranks, bytes, root)


@lru_cache(maxsize=4096)
def point_to_point(backend: str, source: int, target: int, bytes: int) -> tuple[Send, ...]:
    """One message between two ranks, and nothing if it is empty."""
    return tuple(replace(send, source=source, target=target) for send in sends(backend, "send", 2, bytes))
