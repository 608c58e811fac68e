"""Sends of gloo's collectives."""

from __future__ import annotations

from scalewise.hardware.gloo import all_gather, all_reduce, broadcast, reduce
from scalewise.hardware.transfers import Send, total_bytes


def test_broadcast_is_a_binomial_tree_from_its_root() -> None:
    assert broadcast(5, 1000, root=3) == (
        Send(3, 4, 1096, 48),
        Send(3, 0, 1096, 48),
        Send(4, 1, 1096, 48, after=(0,)),
        Send(3, 2, 1096, 48),
    )


def test_all_reduce_passes_chunks_of_two_segments_to_the_rank_below() -> None:
    # Segments of 252 bytes, a multiple of the element size; the last one is shorter.
    first, second = 504 + 2 * 96, 496 + 2 * 96
    assert all_reduce(2, 1000, 0) == (
        Send(0, 1, second, 96),
        Send(1, 0, first, 96),
        Send(0, 1, first, 96, after=(1,)),
        Send(1, 0, second, 96, after=(0,)),
    )


def test_all_reduce_of_one_element_has_one_chunk() -> None:
    # One element is one segment of one chunk; the chunks of the other ranks are empty.
    assert all_reduce(4, 4, 0) == (
        Send(3, 2, 100, 48),
        Send(2, 1, 100, 48, after=(0,)),
        Send(1, 0, 100, 48, after=(1,)),
        Send(0, 3, 100, 48, after=(2,)),
        Send(3, 2, 100, 48, after=(3,)),
        Send(2, 1, 100, 48, after=(4,)),
    )


def test_all_gather_passes_shards_in_halves_to_the_rank_above() -> None:
    shard = 400 + 2 * 96
    assert all_gather(3, 1200, 0) == (
        Send(0, 1, shard, 96),
        Send(1, 2, shard, 96),
        Send(2, 0, shard, 96),
        Send(0, 1, shard, 96, after=(2,)),
        Send(1, 2, shard, 96, after=(0,)),
        Send(2, 0, shard, 96, after=(1,)),
    )


def test_reduce_of_a_large_tensor_sends_segments_once_more_than_needed() -> None:
    small, large = 4 * 2**20, 64 * 2**20
    # Reduce-scatter and gather to the root send N - 1 + (N - 1) / N tensors.
    assert round(total_bytes(reduce(4, small, 0)) / small, 2) == 3.75
    # 64 segments of 1 MiB, 16 per chunk, of which 14 are sent once more.
    assert round(total_bytes(reduce(4, large, 0)) / large, 2) == 3.75 + round(4 * 14 / 64, 2)
