"""Footprints of workloads, as plans need them."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn

from scalewise.core.errors import UserError
from scalewise.data.dataset import DataRequest
from scalewise.models.footprint import footprint_of, refuse_misnamed, roles_of, splittable_layers_of
from scalewise.models.parameters import unreached_by
from scalewise.models.resolve import resolve


@pytest.mark.parametrize(
    ("name", "read"),
    [
        # Backward does not read biases, embedding tables or the first layer, whose inputs need no gradient. It reads
        # the weight and bias of a norm layer.
        ("linear", [100 * 10, 1000 * 100, 10 * 10]),
        (
            "transformer:layers=1,width=8,heads=1,context=4,vocabulary=128",
            [8 * 8] * 4 + [8 * 32] * 2 + [8] * 6 + [8 * 128],
        ),
    ],
)
def test_weights_that_backward_reads_are_found(name: str, read: list[int]) -> None:
    workload = resolve(name)
    footprint = footprint_of(workload, workload.data(DataRequest(samples=4)))
    parameters = zip(footprint.parameter_bytes, footprint.read_again, strict=True)
    assert sorted(size // 4 for size, again in parameters if again) == sorted(read)


def test_batch_norm_is_measured_although_it_refuses_a_single_sample() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

    workload = replace(resolve("tests.tiny:float32"), model=model)
    data = workload.data(DataRequest())
    assert sum(footprint_of(workload, data).parameter_bytes) == 4 * (6 * 8 + 8 + 16 + 8 * 2 + 2)
    assert unreached_by(workload, data) == frozenset()


def test_the_measured_model_is_freed() -> None:
    models: list[weakref.ref[nn.Module]] = []

    def model() -> nn.Module:
        layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        models.append(weakref.ref(layers))
        return layers

    workload = replace(resolve("tests.tiny:float32"), model=model)
    footprint_of(workload, workload.data(DataRequest()))
    gc.collect()
    assert [reference() for reference in models] == [None]


def _roles(model: nn.Module) -> dict[str, str]:
    return {name: role.kind for name, role in roles_of(model).items()}


def test_layers_that_follow_each_other_are_paired() -> None:
    assert _roles(resolve("linear").model()) == {"0": "columns", "2": "rows", "4": "columns", "6": "rows"}


def test_convolutions_are_paired_through_pooling_and_linear_layers_are_not() -> None:
    assert _roles(resolve("conv").model()) == {"0": "columns", "3": "rows", "10": "columns", "12": "rows"}
    pooled = nn.Sequential(nn.Linear(4, 4), nn.MaxPool1d(2), nn.Linear(2, 4))
    assert _roles(pooled) == {}


def test_only_element_wise_layers_may_lie_between_a_pair() -> None:
    assert _roles(nn.Sequential(nn.Linear(4, 4), nn.Softmax(1), nn.Linear(4, 4))) == {}
    assert _roles(resolve("unet:norm=batch,depth=1").model()) == {}


def test_attention_declares_a_split_in_whole_heads() -> None:
    roles = roles_of(resolve("transformer:layers=1,width=12,heads=3").model())
    assert {name: (role.kind, role.unit) for name, role in roles.items()} == {
        "1.attention.query": ("columns", 4),
        "1.attention.key": ("columns", 4),
        "1.attention.value": ("columns", 4),
        "1.attention.output": ("rows", 4),
        "1.feed_forward.0": ("columns", 1),
        "1.feed_forward.2": ("rows", 1),
    }


def test_grouped_convolutions_are_not_split() -> None:
    grouped = nn.Sequential(nn.Conv2d(4, 4, 1, groups=2), nn.ReLU(), nn.Conv2d(4, 4, 1))
    assert [matrix.name for matrix in splittable_layers_of(grouped)] == ["2"]


def test_a_footprint_has_the_sizes_of_inputs_and_outputs_and_shared_inputs() -> None:
    workload = resolve("transformer:layers=1,width=12,heads=3,context=5,vocabulary=128")
    matrices = footprint_of(workload, workload.data(DataRequest(samples=2))).matrices
    assert [matrix.name.rpartition(".")[2] for matrix in matrices] == ["query", "key", "value", "output", "0", "2", "3"]
    query, key, value, output, first, second, head = matrices
    assert query.source == key.source == value.source != output.source
    assert (query.input_bytes, first.output_bytes) == (4 * 5 * 12, 4 * 5 * 48)
    assert first.flops == 2 * 5 * 12 * 48
    assert (head.role, second.role) == ("", "rows")


def test_the_gradient_of_the_data_is_not_needed() -> None:
    workload = resolve("linear")
    matrices = footprint_of(workload, workload.data(DataRequest(samples=2))).matrices
    assert [matrix.input_learns for matrix in matrices] == [False, True, True, True]


def test_static_and_called_layers_agree_on_sizes() -> None:
    workload = resolve("conv")
    called = footprint_of(workload, workload.data(DataRequest(samples=2))).matrices
    with torch.device("meta"):
        static = splittable_layers_of(workload.model())
    assert [(layer.name, layer.columns, layer.rows) for layer in called] == [
        (layer.name, layer.columns, layer.rows) for layer in static
    ]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            {"upp": "columns", "down": "rows"},
            "unknown layer in the tensor_parallel of Declared: 'upp' (did you mean 'up'?)",
        ),
        ({"nope": "columns"}, "unknown layer in the tensor_parallel of Declared: 'nope'; valid: up, down"),
        ({"up": "halves"}, "unknown role of 'up' in the tensor_parallel of Declared: 'halves'; valid: columns, rows"),
    ],
)
def test_unknown_layers_and_roles_in_tensor_parallel_are_refused_with_the_valid_ones(
    declared: dict[str, str], message: str
) -> None:
    class Declared(nn.Module):
        tensor_parallel = declared

        def __init__(self) -> None:
            super().__init__()
            self.up, self.norm, self.down = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    with pytest.raises(UserError) as caught:
        refuse_misnamed(nn.Sequential(Declared()))
    assert str(caught.value).startswith(message)


def test_existing_layers_in_tensor_parallel_are_accepted() -> None:
    refuse_misnamed(resolve("transformer:layers=1,width=16,context=8").model())
