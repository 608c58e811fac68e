"""Sends of NCCL's collectives."""

from __future__ import annotations

import pytest

from scalewise.hardware.collectives import received_bytes, sends, total_bytes
from scalewise.hardware.nccl import broadcast, prefers_tree, reduce, tree_all_reduce
from scalewise.hardware.transfers import Send

MB = 1_000_000


def test_broadcast_is_a_chain_in_pieces() -> None:
    piece = 512 * 1024
    assert broadcast(3, 2 * piece, root=1) == (
        Send(1, 2, piece),
        Send(2, 0, piece, after=(0,)),
        Send(1, 2, piece),
        Send(2, 0, piece, after=(2,)),
    )


def test_reduce_ends_at_its_root() -> None:
    assert reduce(3, 1000, root=1) == (Send(2, 0, 1000), Send(0, 1, 1000, after=(0,)))


def test_large_tensors_have_64_pieces() -> None:
    planned = broadcast(2, 1000 * MB + 1, root=0)
    assert len(planned) == 64
    assert total_bytes(planned) == 1000 * MB + 1


def test_each_of_two_trees_sums_half_of_the_tensor() -> None:
    assert tree_all_reduce(4, 1000, hosts=4) == (
        # First tree: root 0, its child 2, leaves 1 and 3.
        Send(1, 2, 500),
        Send(3, 2, 500),
        Send(2, 0, 500, after=(0, 1)),
        Send(0, 2, 500, after=(2,)),
        Send(2, 1, 500, after=(3,)),
        Send(2, 3, 500, after=(3,)),
        # Second tree: root 3, its child 1, leaves 2 and 0.
        Send(2, 1, 500),
        Send(0, 1, 500),
        Send(1, 3, 500, after=(6, 7)),
        Send(3, 1, 500, after=(8,)),
        Send(1, 2, 500, after=(9,)),
        Send(1, 0, 500, after=(9,)),
    )


@pytest.mark.parametrize(("ranks", "hosts"), [(4, 4), (5, 5), (16, 16), (16, 4), (10, 3), (7, 7)])
def test_trees_send_as_many_bytes_as_rings_and_reach_every_rank(ranks: int, hosts: int) -> None:
    planned = tree_all_reduce(ranks, MB, hosts)
    assert total_bytes(planned) == 2 * (ranks - 1) * MB
    # Every rank receives the sum: half of the tensor from each tree.
    assert all(received_bytes(planned, rank) >= MB for rank in range(ranks))
    for position, send in enumerate(planned):
        assert all(earlier < position and planned[earlier].target == send.source for earlier in send.after)


def test_trees_are_used_for_many_hosts_and_few_bytes() -> None:
    assert not prefers_tree(8, 4096, hosts=1)
    assert prefers_tree(64, 4096, hosts=8)
    assert not prefers_tree(64, 100 * MB, hosts=8)
    assert len(sends("nccl", "all_reduce", 8, 4096, hosts=8)) == 2 * 2 * 7
    assert len(sends("nccl", "all_reduce", 8, 100 * MB, hosts=8)) == 2 * 7 * 8
