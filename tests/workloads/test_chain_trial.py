"""Stages that a user says are the model: tried as cheaply as can be, and refused where they are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from scalewise.data.data import DataRequest
from scalewise.errors import UserError
from scalewise.workloads.chain import chain_of
from scalewise.workloads.chain_trial import refuse_another_model
from scalewise.workloads.workload import Workload
from tests.tiny import float64
from tests.tiny_cut import Named


class Plain(Named):
    """Notes where its numbers are."""

    def __init__(self) -> None:
        super().__init__()
        self.ran_on: list[str] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.ran_on.append(inputs.device.type)
        result: Tensor = self.head(self.between(self.body(inputs)))
        return result

    def between(self, value: Tensor) -> Tensor:
        return value


class LooksAtNumbers(Plain):
    def between(self, value: Tensor) -> Tensor:
        assert value.sum() != 0
        return value


class Views(Plain):
    """The same numbers as another tensor."""

    def between(self, value: Tensor) -> Tensor:
        return value.view_as(value)


class Writes(Plain):
    """Into the tensor itself."""

    def between(self, value: Tensor) -> Tensor:
        return value.mul_(2)


class Drops(Plain):
    def between(self, value: Tensor) -> Tensor:
        return nn.functional.dropout(value, 0.5, self.training)


class Adds(Plain):
    """What goes in to what comes out."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + inputs[:, :3]


def stages(model: nn.Module) -> Sequence[nn.Module]:
    return [model.body, model.head]  # type: ignore[list-item]


def tried(kind: type[Plain]) -> list[str]:
    workload: Workload = replace(float64(), model=lambda: kind().double(), stages=stages)
    model = workload.model()
    assert isinstance(model, Plain)
    refuse_another_model(workload, workload.data(DataRequest(samples=4)), model, chain_of(workload, model))
    return model.ran_on


@pytest.mark.parametrize(("kind", "forwards"), [(Plain, 0), (LooksAtNumbers, 2), (Views, 2)])
def test_a_model_that_calls_its_stages_in_turn_is_not_run_for_that(kind: type[Plain], forwards: int) -> None:
    torch.manual_seed(0)
    assert tried(kind) == ["cpu"] * forwards


@pytest.mark.parametrize("kind", [Writes, Drops, Adds])
def test_stages_that_leave_something_out_are_refused(kind: type[Plain]) -> None:
    with pytest.raises(UserError, match=r"\(body, head\) .*do not compute what the model does \(largest difference"):
        tried(kind)


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        (
            lambda model: model.body,
            "the stages of 'float64' are a Linear: stages=... must give the model's modules in a row, as in "
            "stages=lambda model: [model.body, model.head]",
        ),
        (
            lambda model: [[model.body], model.head],
            "the stages of 'float64' name a list that is no module of the model",
        ),
    ],
)
def test_stages_that_are_no_modules_in_a_row_are_refused(
    given: Callable[[nn.Module], Sequence[nn.Module]], answer: str
) -> None:
    workload = replace(float64(), model=Plain, stages=given)
    with pytest.raises(UserError) as told:
        chain_of(workload, workload.model())
    assert str(told.value) == answer
