"""Parameters that get no gradient from one sample."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from scalewise.core.errors import UserError
from scalewise.data.dataset import DataRequest
from scalewise.models.parameters import flatten_parameters, trainable, unreached_by, views_of
from scalewise.models.workload import Workload
from tests import tiny_unreached
from tests.tiny import float32


def _unreached(workload: Workload) -> frozenset[str]:
    return unreached_by(workload, workload.data(DataRequest()))


def test_layers_that_are_never_called_are_returned_but_frozen_ones_are_not() -> None:
    assert _unreached(tiny_unreached.never()) == {"middle.weight", "middle.bias"}
    assert _unreached(tiny_unreached.frozen()) == _unreached(float32()) == frozenset()


def test_a_model_that_needs_real_values_runs_on_the_cpu_and_the_random_state_is_restored() -> None:
    workload = tiny_unreached.never()
    needs_values = Workload(
        "", lambda: tiny_unreached.Gated(lambda inputs: bool(inputs.sum() > 1e9)), workload.data, workload.loss, (6,)
    )
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert _unreached(needs_values) == {"middle.weight", "middle.bias"}
    assert torch.equal(torch.rand(1), expected)


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(UserError, match="the model of float32 has no trainable parameter; set requires_grad=True"):
        _unreached(replace(float32(), model=nn.Flatten))


def test_flat_parameters_share_memory_with_the_model() -> None:
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


def test_mixed_dtypes_are_refused() -> None:
    model = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1).double()])
    with pytest.raises(UserError, match=r"the model mixes \['torch.float32', 'torch.float64'\]"):
        flatten_parameters(model)


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(UserError, match="the model has nothing to train: none of its parameters"):
        flatten_parameters(nn.Linear(1, 1).requires_grad_(False))
