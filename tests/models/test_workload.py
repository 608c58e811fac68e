"""A model that returns anything but one tensor is refused before training."""

from __future__ import annotations

import pytest

from scalewise.core.errors import UserError
from scalewise.core.training_options import Settings
from scalewise.data.dataset import DataRequest
from scalewise.models.chain import chain_of
from scalewise.models.footprint import footprint_of
from scalewise.models.model_split import refuse_different_stages
from scalewise.models.resolve import resolve
from scalewise.strategies.registry import strategy_of
from scalewise.training.results import Request
from scalewise.training.tasks import train_task
from tests.conftest import SessionOf
from tests.tiny_cut import two_tensors_by_numbers

MESSAGE = "^the model of '{name}' returns tuple, not one tensor; return what the loss needs in one tensor"


def test_a_tuple_is_refused_when_a_module_is_resolved() -> None:
    with pytest.raises(UserError, match=MESSAGE.format(name="tests.tiny_cut:Two")):
        resolve("tests.tiny_cut:Two", "6", 3)


@pytest.mark.parametrize(
    "strategy", ["single", "mirrored", "tensor:columns=body,rows=head", "sharded", "layers", "pipeline"]
)
def test_a_tuple_is_refused_by_every_strategy(strategy: str, session_of: SessionOf) -> None:
    text = "tests.tiny_cut:two_tensors"
    request = Request(text, strategy_of(strategy), Settings(4, None, 2), DataRequest(samples=8))
    with pytest.raises(UserError, match=MESSAGE.format(name=text)):
        session_of(1 if strategy == "single" else 2).run(train_task, request)


def test_a_tuple_is_refused_when_a_model_runs_on_the_cpu_for_its_footprint_or_stages() -> None:
    workload = two_tensors_by_numbers()
    data = workload.data(DataRequest(samples=4))
    model = workload.model()
    with pytest.raises(UserError, match=MESSAGE.format(name="float64")):
        footprint_of(workload, data)
    with pytest.raises(UserError, match=MESSAGE.format(name="float64")):
        refuse_different_stages(workload, data, model, chain_of(workload, model))
