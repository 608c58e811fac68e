"""What NCCL sends between devices: from its published algorithms and tuning constants, not measured.

Rings run towards higher ranks. Payload only: the flags of the low-latency protocol, as many bytes again in small
messages, are left out. A broadcast or a reduce is a chain cut into pieces that follow each other down it, so that all
its links work at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from scalewise.collectives.send import Send

_SMALLEST_PIECE_BYTES = 512 * 1024
"""A slot of NCCL's 4 MiB buffer of eight."""
_MOST_PIECES = 64


def broadcast(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """A chain from the root round the ring; every link carries the tensor once."""
    return _chain([(root + place) % ranks for place in range(ranks)], bytes)


def reduce(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """The same chain, ending at the root; every rank adds its own part on the way."""
    return _chain([(root + 1 + place) % ranks for place in range(ranks)], bytes)


def all_reduce(ranks: int, bytes: int, _root: int) -> tuple[Send, ...]:
    """A ring: reduce-scatter, then all-gather, (N-1)/N of the tensor each."""
    return _ring(ranks, bytes, 2 * (ranks - 1))


def all_gather(ranks: int, bytes: int, _root: int) -> tuple[Send, ...]:
    """A ring: every shard passes every link but one."""
    return _ring(ranks, bytes, ranks - 1)


def reduce_scatter(ranks: int, bytes: int, _root: int) -> tuple[Send, ...]:
    """A ring: every shard passes every link but one, growing into the sum."""
    return _ring(ranks, bytes, ranks - 1)


def gather(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """c10d's, by point-to-point sends in one group: every rank sends its shard to the root."""
    return tuple(Send(rank, root, -(-bytes // ranks)) for rank in range(ranks) if rank != root)


def scatter(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """c10d's, by point-to-point sends in one group: the root sends every rank its shard."""
    return tuple(Send(root, rank, -(-bytes // ranks)) for rank in range(ranks) if rank != root)


def send(ranks: int, bytes: int, root: int) -> tuple[Send, ...]:
    """The root sends the tensor to the rank after it."""
    return (Send(root, (root + 1) % ranks, bytes),)


def prefers_tree(ranks: int, bytes: int, hosts: int) -> bool:
    """Whether NCCL all-reduces by trees: many hosts, few bytes.

    Its own estimate (tuning.cc, version 2.20: low-latency protocol, hosts joined by 12 GB/s): microseconds per hop
    between hosts, 2.7 on a ring and 5.0 on a tree, against the bytes that each puts on a link.
    """
    link_GBps = 12 / 4
    ring_us = 2 * hosts * 2.7 + bytes * 2 * (ranks - 1) / ranks / (link_GBps * 1000)
    tree_us = 2 * math.log2(hosts) * 5.0 + bytes * 2 / 0.92 / (link_GBps * 1000)
    return hosts > 1 and tree_us < ring_us


def tree_all_reduce(ranks: int, bytes: int, hosts: int) -> tuple[Send, ...]:
    """Two trees over the hosts, half of the tensor up and down each; inside a host a chain."""
    heads = [-(-host * ranks // hosts) for host in range(hosts)]
    made: list[Send] = []
    for half, parents in ((bytes - bytes // 2, _tree(hosts)), (bytes // 2, _other_tree(hosts))):
        parent = {rank: rank - 1 for rank in range(ranks) if rank not in heads}
        parent |= {heads[host]: heads[above] for host, above in parents.items()}
        for piece in _pieces(half):
            made += _up_and_down(parent, piece, len(made))
    return tuple(made)


def _ring(ranks: int, bytes: int, steps: int) -> tuple[Send, ...]:
    """In every step each rank passes a shard to the next, once the step before has reached it."""
    shard = -(-bytes // ranks)
    return tuple(
        Send(rank, (rank + 1) % ranks, shard, after=((step - 1) * ranks + (rank - 1) % ranks,) if step else ())
        for step in range(steps)
        for rank in range(ranks)
    )


def _chain(order: list[int], bytes: int) -> tuple[Send, ...]:
    made: list[Send] = []
    for piece in _pieces(bytes):
        for place, (source, target) in enumerate(pairwise(order)):
            made.append(Send(source, target, piece, after=(len(made) - 1,) if place else ()))
    return tuple(made)


def _pieces(bytes: int) -> Iterator[int]:
    count = max(1, min(bytes // _SMALLEST_PIECE_BYTES, _MOST_PIECES))
    for number in range(count):
        yield bytes * (number + 1) // count - bytes * number // count


def _tree(hosts: int) -> dict[int, int]:
    """Every host's parent in NCCL's binary tree: host 0 is the root, odd hosts are the leaves."""
    parents = {}
    for host in range(1, hosts):
        bit = host & -host
        above = (host ^ bit) | bit << 1
        parents[host] = above if above < hosts else host ^ bit
    return parents


def _other_tree(hosts: int) -> dict[int, int]:
    """Its counterpart, with other inner hosts: mirrored for an even number of hosts, else moved on by one."""
    if hosts % 2 == 0:
        return {hosts - 1 - host: hosts - 1 - above for host, above in _tree(hosts).items()}
    return {(host + 1) % hosts: (above + 1) % hosts for host, above in _tree(hosts).items()}


def _up_and_down(parent: dict[int, int], piece: int, first: int) -> list[Send]:
    """One piece summed towards the root, then handed back; `first` is the position of its first send."""
    depth: dict[int, int] = {}
    for rank in parent:
        above, depth[rank] = rank, 0
        while above in parent:
            above, depth[rank] = parent[above], depth[rank] + 1
    made: list[Send] = []
    arrived: dict[int, tuple[int, ...]] = {}
    for rank in sorted(parent, key=lambda rank: -depth[rank]):
        position = first + len(made)
        made.append(Send(rank, parent[rank], piece, after=arrived.get(rank, ())))
        arrived[parent[rank]] = (*arrived.get(parent[rank], ()), position)
    (root,) = set(parent.values()) - set(parent)
    have = {root: arrived[root]}
    for rank in sorted(parent, key=lambda rank: depth[rank]):
        have[rank] = (first + len(made),)
        made.append(Send(parent[rank], rank, piece, after=have[parent[rank]]))
    return made
