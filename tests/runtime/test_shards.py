"""Tests of shuffling and of the shares of ranks in a batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers

from scalewise.runtime.feed import epoch_order, shards_of


@given(seed=integers(0, 2**63 - 1), epoch=integers(0, 10_000), samples=integers(1, 60))
def test_an_epoch_is_a_reproducible_permutation(seed: int, epoch: int, samples: int) -> None:
    order = epoch_order(seed, epoch, samples)
    assert sorted(order.tolist()) == list(range(samples))
    assert torch.equal(order, epoch_order(seed, epoch, samples))


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(epoch_order(seed, epoch, 50).tolist()) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_shuffling_does_not_change_the_random_state() -> None:
    before = torch.get_rng_state()
    epoch_order(3, 1, 10)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("samples", "parts", "accumulate", "expected"),
    [
        (4, 1, 1, [[([0, 1, 2, 3], 1.0)]]),
        (7, 3, 1, [[([0, 1, 2], 3 / 7)], [([3, 4], 2 / 7)], [([5, 6], 2 / 7)]]),
        (5, 2, 2, [[([0, 1], 0.4), ([2], 0.2)], [([3], 0.2), ([4], 0.2)]]),
        (2, 3, 1, [[([0], 0.5)], [([1], 0.5)], [([0], 0.0)]]),
        (1, 1, 4, [[([0], 1.0)]]),
    ],
)
def test_shares_of_ranks(
    samples: int, parts: int, accumulate: int, expected: list[list[tuple[list[int], float]]]
) -> None:
    rows = torch.arange(samples)
    shares = [
        [(shard.rows.tolist(), shard.weight) for shard in shards_of(rows, parts, part, accumulate)]
        for part in range(parts)
    ]
    assert shares == expected


@given(samples=integers(1, 40), parts=integers(1, 9), accumulate=integers(1, 6))
def test_the_weighted_mean_of_shards_is_the_mean_of_the_batch(samples: int, parts: int, accumulate: int) -> None:
    rows = torch.arange(samples)
    shards = [shard for part in range(parts) for shard in shards_of(rows, parts, part, accumulate)]
    assert sum(shard.weight for shard in shards) == pytest.approx(1)
    mean = sum(shard.weight * float(shard.rows.double().mean()) for shard in shards)
    assert mean == pytest.approx((samples - 1) / 2)
    weighted = [row for shard in shards if shard.weight for row in shard.rows.tolist()]
    assert sorted(weighted) == list(range(samples))
