"""Which parameters one sample gives a gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from scalewise.data.data import DataRequest
from scalewise.errors import UserError
from scalewise.workloads.reached import unreached_by
from scalewise.workloads.workload import Workload
from tests import tiny_unreached
from tests.tiny import float32


def _unreached(workload: Workload) -> frozenset[str]:
    return unreached_by(workload, workload.data(DataRequest()))


def test_layers_that_are_never_called_are_named_and_frozen_ones_are_not() -> None:
    assert _unreached(tiny_unreached.never()) == {"middle.weight", "middle.bias"}
    assert _unreached(tiny_unreached.frozen()) == _unreached(float32()) == frozenset()


def test_a_model_that_needs_numbers_is_tried_with_some_and_random_numbers_are_put_back() -> None:
    workload = tiny_unreached.never()
    needs_numbers = Workload(
        "", lambda: tiny_unreached.Gated(lambda inputs: bool(inputs.sum() > 1e9)), workload.data, workload.loss, (6,)
    )
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert _unreached(needs_numbers) == {"middle.weight", "middle.bias"}
    assert torch.equal(torch.rand(1), expected)


def test_a_model_without_anything_to_train_is_refused() -> None:
    with pytest.raises(UserError, match="the model of float32 has no parameter that requires a gradient: nothing to"):
        _unreached(replace(float32(), model=nn.Flatten))
