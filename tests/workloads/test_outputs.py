"""A model that gives anything but one tensor is refused before it trains."""

from __future__ import annotations

import pytest

from scalewise.data.data import DataRequest
from scalewise.errors import UserError
from scalewise.step.settings import Settings
from scalewise.strategies.registry import strategy_of
from scalewise.training.request import Request
from scalewise.training.task import train_task
from scalewise.workloads.chain import chain_of
from scalewise.workloads.chain_trial import refuse_another_model
from scalewise.workloads.footprint import footprint_of
from scalewise.workloads.resolve import resolve
from tests.conftest import SessionOf
from tests.tiny_cut import two_tensors_by_numbers

SENTENCE = "^the model of '{name}' gives tuple, not one tensor; let its forward return what the loss needs, in one"


def test_a_tuple_is_refused_where_a_module_is_named() -> None:
    with pytest.raises(UserError, match=SENTENCE.format(name="tests.tiny_cut:Two")):
        resolve("tests.tiny_cut:Two", "6", 3)


@pytest.mark.parametrize(
    "strategy", ["single", "mirrored", "tensor:columns=body,rows=head", "sharded", "layers", "pipeline"]
)
def test_a_tuple_of_a_workload_is_refused_by_every_strategy(strategy: str, session_of: SessionOf) -> None:
    text = "tests.tiny_cut:two_tensors"
    request = Request(text, strategy_of(strategy), Settings(4, None, 2), DataRequest(samples=8))
    with pytest.raises(UserError, match=SENTENCE.format(name=text)):
        session_of(1 if strategy == "single" else 2).run(train_task, request)


def test_a_tuple_is_refused_where_a_model_that_needs_numbers_is_first_run() -> None:
    workload = two_tensors_by_numbers()
    data = workload.data(DataRequest(samples=4))
    model = workload.model()
    with pytest.raises(UserError, match=SENTENCE.format(name="float64")):
        footprint_of(workload, data)
    with pytest.raises(UserError, match=SENTENCE.format(name="float64")):
        refuse_another_model(workload, data, model, chain_of(workload, model))
