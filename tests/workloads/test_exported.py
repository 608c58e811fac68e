"""Models that are cut by torch.export."""

from __future__ import annotations

import gc
import inspect
import warnings
import weakref

import pytest
import torch

from scalewise.data.data import DataRequest
from scalewise.errors import UserError
from scalewise.workloads.chain import example_of
from scalewise.workloads.cuttable import cuttable_else
from scalewise.workloads.exported import exported_chain
from scalewise.workloads.resolve import resolve
from scalewise.workloads.section_seconds import section_seconds
from tests.tiny_cut import Branches, dropping, undeclared


def test_a_place_that_there_is_not_is_answered_with_those_there_are_and_what_they_are() -> None:
    workload = resolve("transformer:layers=2,width=16,context=8")
    inputs = example_of(workload.data(DataRequest(samples=2)), 2, "cpu")
    with pytest.raises(UserError) as answer:
        exported_chain(workload, workload.model(), inputs, ["blocks.9"])
    assert str(answer.value) == (
        "unknown module to cut at 'blocks.9'; valid: 0 (Embedding), 1 (Block), 2 (Block), 3 (LayerNorm), 4 (Linear)"
    )


def test_a_model_that_export_cannot_follow_is_answered_with_the_users_own_line_and_nothing_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    workload = undeclared()
    inputs = example_of(workload.data(DataRequest(samples=2)), 2, "cpu")
    with pytest.raises(UserError) as answer:
        exported_chain(workload, workload.model(), inputs, [])
    lines, first = inspect.getsourcelines(Branches)
    at, line = next((first + at, line.strip()) for at, line in enumerate(lines) if "value.sum() > 0" in line)
    assert str(answer.value) == (
        f"'{workload.name}' cannot be cut into stages: torch.export stops at {inspect.getfile(Branches)}:{at} ({line}"
        "), "
        "where what is computed depends on the numbers in a tensor; write it as an nn.Sequential, or say its stages "
        "with Workload(stages=...): then it is cut between those, or where pipeline:cut=STAGE says"
    )
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("training", [True, False])
def test_parts_compute_what_the_model_does_in_training_and_in_evaluation(training: bool) -> None:
    workload = dropping()
    inputs = torch.randn(4, 6, dtype=torch.float64)
    torch.manual_seed(1)
    reference = workload.model().train(training)
    torch.manual_seed(1)
    parts = exported_chain(workload, workload.model(), inputs, [])
    assert [part.name for part in parts] == ["first", "norm", "drop", "attention", "last"]
    torch.manual_seed(2)
    expected = reference(inputs)
    torch.manual_seed(2)
    value = inputs
    for part in parts:
        value = part.module.train(training)(value)
    torch.testing.assert_close(value, expected)
    statistics = {name: tensor for part in parts for name, tensor in part.module.named_buffers()}
    torch.testing.assert_close(
        statistics["exported.norm.running_mean"], dict(reference.named_buffers())["norm.running_mean"]
    )


def test_trying_a_model_changes_none_of_its_statistics() -> None:
    workload = dropping()
    model = workload.model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    cuttable_else(workload, workload.data(DataRequest(samples=4)), model, 2, "", 4)
    assert {name: tensor.tolist() for name, tensor in model.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in before.items()
    }


def test_a_part_keeps_no_other_parts_weights_and_nothing_is_said() -> None:
    workload = dropping()
    data = workload.data(DataRequest(samples=4))
    model = workload.model()
    weights = {name: weakref.ref(parameter) for name, parameter in model.named_parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cuttable = cuttable_else(workload, data, model, 2, "", 4)
        section_seconds(cuttable, example_of(data, 4, "cpu"), torch.device("cpu"))
    first = cuttable.parts[0]
    del model, cuttable
    gc.collect()
    assert [name for name, weight in weights.items() if weight() is not None] == ["first.weight", "first.bias"]
    assert first.module.training
