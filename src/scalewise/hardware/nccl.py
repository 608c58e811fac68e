"""Point-to-point sends of NCCL's collectives, from its published algorithms.

Rings run towards higher ranks. Only the payload counts: the flags of the low-latency protocol, which double small
messages, are left out. A broadcast or a reduce is a chain of ranks. The tensor passes it in pieces, so that all links
are in use at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from scalewise.hardware.transfers import Send

_SMALLEST_PIECE_BYTES = 512 * 1024
"""One of the eight slots of NCCL's 4 MiB buffer."""
_MOST_PIECES = 64


def broadcast(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """Return the sends of a chain from the root around the ring; every link carries the tensor once."""
    return _chain([(root + place) % ranks for place in range(ranks)], bytes)


def reduce(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """Return the sends of a chain around the ring to the root; every rank adds its own values."""
    return _chain([(root + 1 + place) % ranks for place in range(ranks)], bytes)


def all_reduce(ranks: int, bytes: int, _root: int) -> tuple[Send, ...]:
    """Return the sends of a ring: reduce-scatter, then all-gather, (N-1)/N of the tensor each."""
    return _ring(ranks, bytes, 2 * (ranks - 1))


def all_gather(ranks: int, bytes: int, _root: int) -> tuple[Send, ...]:
    """Return the sends of a ring in which every shard crosses all links but one."""
    return _ring(ranks, bytes, ranks - 1)


def reduce_scatter(ranks: int, bytes: int, _root: int) -> tuple[Send, ...]:
    """Return the sends of a ring in which every shard crosses all links but one and every rank adds its values."""
    return _ring(ranks, bytes, ranks - 1)


def gather(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """Return the sends of c10d's gather: every rank sends its shard to the root, in one NCCL group."""
    return tuple(Send(rank, root, -(-bytes // ranks)) for rank in range(ranks) if rank != root)


def scatter(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """Return the sends of c10d's scatter: the root sends every rank its shard, in one NCCL group."""
    return tuple(Send(root, rank, -(-bytes // ranks)) for rank in range(ranks) if rank != root)


def send(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """Return the send of the tensor from the root to the next rank."""
    return (Send(root, (root + 1) % ranks, bytes),)


def prefers_tree(ranks: int, bytes: int, hosts: int) -> bool:
    """Return whether NCCL all-reduces with trees instead of a ring, as it does for many hosts and few bytes.

    This is NCCL's own estimate (tuning.cc, version 2.20, low-latency protocol, 12 GB/s between hosts). It adds the
    microseconds per hop between hosts (ring 2.7, tree 5.0) and the time of the bytes on a link.
    """
    link_GBps = 12 / 4
    ring_us = 2 * hosts * 2.7 + bytes * 2 * (ranks - 1) / ranks / (link_GBps * 1000)
    tree_us = 2 * math.log2(hosts) * 5.0 + bytes * 2 / 0.92 / (link_GBps * 1000)
    return hosts > 1 and tree_us < ring_us


def tree_all_reduce(ranks: int, bytes: int, hosts: int) -> tuple[Send, ...]:
    """Return the sends of two trees over the hosts, each for half of the tensor. The ranks of a host form a chain."""
    first_ranks = [-(-host * ranks // hosts) for host in range(hosts)]
    sends: list[Send] = []
    for half, parent_hosts in ((bytes - bytes // 2, _tree(hosts)), (bytes // 2, _second_tree(hosts))):
        parent = {rank: rank - 1 for rank in range(ranks) if rank not in first_ranks}
        parent |= {first_ranks[host]: first_ranks[parent_host] for host, parent_host in parent_hosts.items()}
        for piece in _pieces(half):
            sends += _reduce_and_broadcast(parent, piece, len(sends))
    return tuple(sends)


def _ring(ranks: int, bytes: int, steps: int) -> tuple[Send, ...]:
    """Return the sends of a ring: in each step, every rank sends a shard after it received the last one."""
    shard = -(-bytes // ranks)
    return tuple(
        Send(rank, (rank + 1) % ranks, shard, after=((step - 1) * ranks + (rank - 1) % ranks,) if step else ())
        for step in range(steps)
        for rank in range(ranks)
    )


def _chain(order: list[int], bytes: int) -> tuple[Send, ...]:
    sends: list[Send] = []
    for piece in _pieces(bytes):
        for place, (source, target) in enumerate(pairwise(order)):
            sends.append(Send(source, target, piece, after=(len(sends) - 1,) if place else ()))
    return tuple(sends)


def _pieces(bytes: int) -> Iterator[int]:
    count = max(1, min(bytes // _SMALLEST_PIECE_BYTES, _MOST_PIECES))
    for number in range(count):
        yield bytes * (number + 1) // count - bytes * number // count


def _tree(hosts: int) -> dict[int, int]:
    """Return the parent of every host in NCCL's binary tree: host 0 is the root, odd hosts are leaves."""
    parents = {}
    for host in range(1, hosts):
        bit = host & -host
        parent = (host ^ bit) | bit << 1
        parents[host] = parent if parent < hosts else host ^ bit
    return parents


def _second_tree(hosts: int) -> dict[int, int]:
    """Return the parents in NCCL's second tree: mirrored for an even number of hosts, else shifted by one host."""
    if hosts % 2 == 0:
        return {hosts - 1 - host: hosts - 1 - parent for host, parent in _tree(hosts).items()}
    return {(host + 1) % hosts: (parent + 1) % hosts for host, parent in _tree(hosts).items()}


def _reduce_and_broadcast(parent: dict[int, int], piece: int, first: int) -> list[Send]:
    """Return the sends that sum one piece up to the root and send it down again; the first has index `first`."""
    depth: dict[int, int] = {}
    for rank in parent:
        ancestor, depth[rank] = rank, 0
        while ancestor in parent:
            ancestor, depth[rank] = parent[ancestor], depth[rank] + 1
    sends: list[Send] = []
    from_children: dict[int, tuple[int, ...]] = {}
    for rank in sorted(parent, key=lambda rank: -depth[rank]):
        position = first + len(sends)
        sends.append(Send(rank, parent[rank], piece, after=from_children.get(rank, ())))
        from_children[parent[rank]] = (*from_children.get(parent[rank], ()), position)
    (root,) = set(parent.values()) - set(parent)
    received = {root: from_children[root]}
    for rank in sorted(parent, key=lambda rank: depth[rank]):
        received[rank] = (first + len(sends),)
        sends.append(Send(parent[rank], rank, piece, after=received[parent[rank]]))
    return sends
