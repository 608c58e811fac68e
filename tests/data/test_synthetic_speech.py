"""Synthetic clips stand in for recordings: the same every time, and different from one another."""

from __future__ import annotations

import torch

from scalewise.data.data import Data, DataRequest
from scalewise.data.synthetic_speech import synthetic_speech


def clips_of(data: Data) -> torch.Tensor:
    assert data.tensors is not None
    return data.tensors[0]


def test_there_are_2000_unless_others_are_asked_for() -> None:
    data = synthetic_speech(DataRequest())
    assert data.tensors is not None
    assert data.source == "synthetic speech"
    assert data.tensors[0].shape == (2_000, 1, 12_000)
    assert torch.bincount(data.tensors[1]).tolist() == [200] * 10
    assert torch.equal(data.tensors[0].abs().amax(2), torch.ones(2_000, 1))
    assert len(synthetic_speech(DataRequest(samples=7))) == 7


def test_a_seed_decides_every_sample() -> None:
    first, again, other = (clips_of(synthetic_speech(DataRequest(samples=20, seed=seed))) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not any(torch.equal(one, two) for one, two in zip(first, other, strict=True))
    assert len({clip.numpy().tobytes() for clip in first}) == 20


def test_lengths_differ_as_those_of_spoken_words_do() -> None:
    ends = [int(clip.flatten().nonzero().max()) for clip in clips_of(synthetic_speech(DataRequest(samples=100)))]
    assert 2_000 < min(ends) < 4_000 < 6_000 < max(ends) < 8_000


def test_items_are_the_same_samples() -> None:
    data = synthetic_speech(DataRequest(samples=12))
    assert data.tensors is not None
    assert data.items is not None
    clip, label = data.items[11]
    assert torch.equal(clip, data.tensors[0][11])
    assert label == data.tensors[1][11] == 1
