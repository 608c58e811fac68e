"""Stages that a user declares are checked without computing if possible, and refused if they differ from the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from scalewise.core.errors import UserError
from scalewise.data.dataset import DataRequest
from scalewise.models.chain import chain_of
from scalewise.models.model_split import refuse_different_stages
from scalewise.models.workload import Workload
from tests.tiny import float64
from tests.tiny_cut import Named


class Plain(Named):
    """Records the device of every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.ran_on: list[str] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.ran_on.append(inputs.device.type)
        result: Tensor = self.head(self.between(self.body(inputs)))
        return result

    def between(self, value: Tensor) -> Tensor:
        return value


class NeedsValues(Plain):
    def between(self, value: Tensor) -> Tensor:
        assert value.sum() != 0
        return value


class Views(Plain):
    """Passes a view of the tensor, with equal values."""

    def between(self, value: Tensor) -> Tensor:
        return value.view_as(value)


class Writes(Plain):
    """Changes the tensor in place."""

    def between(self, value: Tensor) -> Tensor:
        return value.mul_(2)


class Drops(Plain):
    def between(self, value: Tensor) -> Tensor:
        return nn.functional.dropout(value, 0.5, self.training)


class Adds(Plain):
    """Adds the input to the output."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + inputs[:, :3]


def stages(model: nn.Module) -> Sequence[nn.Module]:
    return [model.body, model.head]  # type: ignore[list-item]


def devices_of_check(kind: type[Plain]) -> list[str]:
    workload: Workload = replace(float64(), model=lambda: kind().double(), stages=stages)
    model = workload.model()
    assert isinstance(model, Plain)
    refuse_different_stages(workload, workload.data(DataRequest(samples=4)), model, chain_of(workload, model))
    return model.ran_on


@pytest.mark.parametrize(("kind", "forwards"), [(Plain, 0), (NeedsValues, 2), (Views, 2)])
def test_a_model_that_only_calls_its_stages_in_order_is_not_computed(kind: type[Plain], forwards: int) -> None:
    torch.manual_seed(0)
    assert devices_of_check(kind) == ["cpu"] * forwards


@pytest.mark.parametrize("kind", [Writes, Drops, Adds])
def test_stages_that_leave_something_out_are_refused(kind: type[Plain]) -> None:
    with pytest.raises(UserError, match=r"\(body, head\) .*do not compute what the model does.* \(largest difference"):
        devices_of_check(kind)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            lambda model: model.body,
            "the stages of 'float64' are a Linear, not a list; return the model's modules in the order of their calls, "
            "as in stages=lambda model: [model.body, model.head]",
        ),
        (
            lambda model: [[model.body], model.head],
            "the stages of 'float64' contain a list that is not a module of the model",
        ),
    ],
)
def test_stages_must_be_a_list_of_modules_of_the_model(
    declared: Callable[[nn.Module], Sequence[nn.Module]], message: str
) -> None:
    workload = replace(float64(), model=Plain, stages=declared)
    with pytest.raises(UserError) as caught:
        chain_of(workload, workload.model())
    assert str(caught.value) == message
