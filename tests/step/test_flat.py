"""Parameters as one stretch of memory: the same model, and whatever is written there is in it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scalewise.errors import UserError
from scalewise.step.flat import flatten_parameters, trainable, views_of


def test_the_model_stays_the_same_and_shares_the_memory() -> None:
    last = nn.Linear(2, 1)
    last.bias.requires_grad = False
    model = nn.Sequential(nn.Linear(3, 2), last)
    inputs = torch.ones(1, 3)
    before = model(inputs)
    flat = flatten_parameters(model)
    assert flat.shape == (3 * 2 + 2 + 2,)
    assert torch.equal(model(inputs), before)
    flat.zero_()
    assert all(not parameter.any() for parameter in trainable(model))
    assert torch.equal(model(inputs), last.bias.expand(1, 1))


def test_views_have_the_shapes_of_the_parameters() -> None:
    parameters = trainable(nn.Linear(3, 2))
    assert [view.tolist() for view in views_of(torch.arange(8.0), parameters)] == [[[0, 1, 2], [3, 4, 5]], [6, 7]]


def test_mixed_kinds_of_numbers_are_refused() -> None:
    model = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1).double()])
    with pytest.raises(UserError, match=r"the model mixes \['torch.float32', 'torch.float64'\]"):
        flatten_parameters(model)


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(UserError, match="the model has nothing to train: none of its parameters"):
        flatten_parameters(nn.Linear(1, 1).requires_grad_(False))
