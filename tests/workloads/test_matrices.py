"""Which layers of a model are cut, and what goes through them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scalewise.data.data import DataRequest
from scalewise.errors import UserError
from scalewise.workloads.footprint import footprint_of
from scalewise.workloads.matrices import matrices_of, refuse_misnamed, roles_of
from scalewise.workloads.resolve import resolve


def _roles(model: nn.Module) -> dict[str, str]:
    return {name: role.kind for name, role in roles_of(model).items()}


def test_layers_that_follow_each_other_are_paired() -> None:
    assert _roles(resolve("linear").model()) == {"0": "columns", "2": "rows", "4": "columns", "6": "rows"}


def test_convolutions_are_paired_through_pooling_and_linear_layers_are_not() -> None:
    assert _roles(resolve("conv").model()) == {"0": "columns", "3": "rows", "10": "columns", "12": "rows"}
    pooled = nn.Sequential(nn.Linear(4, 4), nn.MaxPool1d(2), nn.Linear(2, 4))
    assert _roles(pooled) == {}


def test_what_lies_between_must_be_element_wise() -> None:
    assert _roles(nn.Sequential(nn.Linear(4, 4), nn.Softmax(1), nn.Linear(4, 4))) == {}
    assert _roles(resolve("unet:norm=batch,depth=1").model()) == {}


def test_attention_says_itself_how_it_is_cut_in_whole_heads() -> None:
    roles = roles_of(resolve("transformer:layers=1,width=12,heads=3").model())
    assert {name: (role.kind, role.unit) for name, role in roles.items()} == {
        "1.attention.query": ("columns", 4),
        "1.attention.key": ("columns", 4),
        "1.attention.value": ("columns", 4),
        "1.attention.output": ("rows", 4),
        "1.feed_forward.0": ("columns", 1),
        "1.feed_forward.2": ("rows", 1),
    }


def test_grouped_convolutions_stay_whole() -> None:
    grouped = nn.Sequential(nn.Conv2d(4, 4, 1, groups=2), nn.ReLU(), nn.Conv2d(4, 4, 1))
    assert [matrix.name for matrix in matrices_of(grouped)] == ["2"]


def test_a_footprint_knows_what_goes_through_and_who_takes_in_the_same() -> None:
    workload = resolve("transformer:layers=1,width=12,heads=3,context=5,vocabulary=128")
    matrices = footprint_of(workload, workload.data(DataRequest(samples=2))).matrices
    assert [matrix.name.rpartition(".")[2] for matrix in matrices] == ["query", "key", "value", "output", "0", "2", "3"]
    query, key, value, output, first, second, head = matrices
    assert query.source == key.source == value.source != output.source
    assert (query.input_bytes, first.output_bytes) == (4 * 5 * 12, 4 * 5 * 48)
    assert first.flops == 2 * 5 * 12 * 48
    assert (head.role, second.role) == ("", "rows")


def test_the_datas_gradient_is_not_needed() -> None:
    workload = resolve("linear")
    matrices = footprint_of(workload, workload.data(DataRequest(samples=2))).matrices
    assert [matrix.input_learns for matrix in matrices] == [False, True, True, True]


def test_static_and_called_layers_agree_on_sizes() -> None:
    workload = resolve("conv")
    called = footprint_of(workload, workload.data(DataRequest(samples=2))).matrices
    with torch.device("meta"):
        still = matrices_of(workload.model())
    assert [(each.name, each.columns, each.rows) for each in called] == [
        (each.name, each.columns, each.rows) for each in still
    ]


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (
            {"upp": "columns", "down": "rows"},
            "unknown layer of Said in its tensor_parallel: 'upp' (did you mean 'up'?)",
        ),
        ({"nope": "columns"}, "unknown layer of Said in its tensor_parallel: 'nope'; valid: up, down"),
        ({"up": "halves"}, "unknown way to cut 'up' in the tensor_parallel of Said: 'halves'; valid: columns, rows"),
    ],
)
def test_a_model_that_says_to_cut_layers_that_it_has_not_is_told_those_it_has(
    said: dict[str, str], answer: str
) -> None:
    class Said(nn.Module):
        tensor_parallel = said

        def __init__(self) -> None:
            super().__init__()
            self.up, self.norm, self.down = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    with pytest.raises(UserError) as told:
        refuse_misnamed(nn.Sequential(Said()))
    assert str(told.value).startswith(answer)


def test_layers_that_there_are_may_be_said_to_be_cut() -> None:
    refuse_misnamed(resolve("transformer:layers=1,width=16,context=8").model())
