"""Models that are split by torch.export."""

from __future__ import annotations

import gc
import inspect
import warnings
import weakref

import pytest
import torch

from scalewise.core.errors import UserError
from scalewise.data.dataset import DataRequest
from scalewise.models.chain import example_of
from scalewise.models.export import ADVICE, exported_chain
from scalewise.models.model_split import section_seconds, split_by_export
from scalewise.models.resolve import resolve
from tests.tiny_cut import Branches, dropping, undeclared


def test_an_unknown_module_to_split_at_is_reported_with_all_valid_ones() -> None:
    workload = resolve("transformer:layers=2,width=16,context=8")
    inputs = example_of(workload.data(DataRequest(samples=2)), 2, "cpu")
    with pytest.raises(UserError) as caught:
        exported_chain(workload, workload.model(), inputs, ["blocks.9"])
    assert str(caught.value) == (
        "unknown module to split at 'blocks.9'; valid: 0 (Embedding), 1 (Block), 2 (Block), 3 (LayerNorm), 4 (Linear)"
    )


def test_a_model_that_cannot_be_exported_is_reported_with_the_users_own_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    workload = undeclared()
    inputs = example_of(workload.data(DataRequest(samples=2)), 2, "cpu")
    with pytest.raises(UserError) as caught:
        exported_chain(workload, workload.model(), inputs, [])
    lines, first = inspect.getsourcelines(Branches)
    number, line = next((first + index, line.strip()) for index, line in enumerate(lines) if "value.sum() > 0" in line)
    assert str(caught.value) == (
        f"'{workload.name}' cannot be split into stages: torch.export stops at {inspect.getfile(Branches)}:{number} "
        f"({line}), where the computation depends on the values of a tensor; {ADVICE}"
    )
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("training", [True, False])
def test_parts_compute_the_same_as_the_model(training: bool) -> None:
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


def test_exporting_a_model_does_not_change_its_buffers() -> None:
    workload = dropping()
    model = workload.model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    split_by_export(workload, workload.data(DataRequest(samples=4)), model, 2, "", 4)
    assert {name: tensor.tolist() for name, tensor in model.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in before.items()
    }


def test_a_part_holds_no_weights_of_other_parts_and_no_warning_is_shown() -> None:
    workload = dropping()
    data = workload.data(DataRequest(samples=4))
    model = workload.model()
    weights = {name: weakref.ref(parameter) for name, parameter in model.named_parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chain = split_by_export(workload, data, model, 2, "", 4)
        section_seconds(chain, example_of(data, 4, "cpu"), torch.device("cpu"))
    first = chain.parts[0]
    del model, chain
    gc.collect()
    assert [name for name, weight in weights.items() if weight() is not None] == ["first.weight", "first.bias"]
    assert first.module.training
