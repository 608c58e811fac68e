"""`describe` shows the tables of the study's figures 1 and 2."""

from __future__ import annotations

import json

from torch import Tensor, nn
from torch.nn import functional

from scalewise.data.dataset import Data
from scalewise.models.describe import MB, describe
from scalewise.models.workload import Workload

FIGURE_1 = [
    ("Linear-1", [1, 1000], 12_001_000),
    ("ReLU-2", [1, 1000], 0),
    ("Linear-3", [1, 100], 100_100),
    ("ReLU-4", [1, 100], 0),
    ("Linear-5", [1, 10], 1_010),
    ("Sigmoid-6", [1, 10], 0),
    ("Linear-7", [1, 10], 110),
]
FIGURE_2 = [
    ("Conv1d-1", [50, 12001], 10_050),
    ("ReLU-2", [50, 12001], 0),
    ("MaxPool1d-3", [50, 3000], 0),
    ("Conv1d-4", [30, 3001], 150_030),
    ("ReLU-5", [30, 3001], 0),
    ("MaxPool1d-6", [30, 1000], 0),
    ("Conv1d-7", [10, 1001], 15_010),
    ("ReLU-8", [10, 1001], 0),
    ("MaxPool1d-9", [10, 200], 0),
    ("Linear-10", [100], 200_100),
    ("Sigmoid-11", [100], 0),
    ("Linear-12", [10], 1_010),
]


def rows_of(name: str) -> list[tuple[str, list[int], int]]:
    return [(row["name"], row["output_shape"], row["parameters"]) for row in describe(name).to_json()["layers"]]


def test_linear_equals_figure_1() -> None:
    assert rows_of("linear") == FIGURE_1
    description = describe("linear")
    assert description.parameters == 12_102_220
    assert f"{description.parameter_bytes / MB:.2f}" == "46.17"
    assert f"{description.input_bytes / MB:.2f}" == "0.05"
    assert f"{description.forward_backward_bytes / MB:.2f}" == "0.02"
    assert description.flops_per_sample == 2 * (12_102_220 - 1120)


def test_conv_equals_figure_2() -> None:
    assert rows_of("conv") == FIGURE_2
    description = describe("conv")
    assert description.parameters == 376_200
    assert f"{description.parameter_bytes / MB:.2f}" == "1.44"
    assert f"{description.input_bytes / MB:.2f}" == "0.05"
    assert f"{description.forward_backward_bytes / MB:.2f}" == "12.07"
    convolutions = 12_001 * 50 * 200 + 3_001 * 30 * 50 * 100 + 1_001 * 10 * 30 * 50
    assert description.flops_per_sample == 2 * (convolutions + 2000 * 100 + 100 * 10)


def test_the_json_document_has_the_documented_keys() -> None:
    document = json.loads(json.dumps(describe("conv").to_json()))
    assert list(document) == [
        "workload",
        "parameters",
        "parameter_bytes",
        "input_bytes",
        "forward_backward_bytes",
        "flops_per_sample",
        "training_flops_per_sample",
        "layers",
    ]
    assert list(document["layers"][0]) == [
        "name",
        "module",
        "output_shape",
        "parameters",
        "parameter_bytes",
        "activation_bytes",
        "flops",
    ]


def test_layers_sum_to_the_totals() -> None:
    for name in ("conv", "unet", "transformer", "synthetic"):
        description = describe(name)
        assert sum(layer.flops for layer in description.layers) == description.flops_per_sample
        assert sum(layer.parameter_bytes for layer in description.layers) == 4 * description.parameters


def test_attention_of_the_transformer_is_counted() -> None:
    attention = [layer for layer in describe("transformer:layers=1").layers if layer.name.startswith("Attention")]
    assert [layer.flops for layer in attention] == [2 * 2 * 128 * 128 * 128]


def test_the_table_shows_the_values_of_the_study() -> None:
    text = str(describe("conv"))
    for expected in ("Conv1d-1", "[-1, 50, 12001]", "150,030", "376,200", "12.07", "1.44", "1,170,752,000"):
        assert expected in text
    assert "real sample" not in text


class NeedsValues(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input + input.sum().item())


def test_a_count_on_a_real_sample_is_reported() -> None:
    workload = Workload("mine", lambda: NeedsValues(3, 2), lambda _: Data("none"), functional.mse_loss, (3,))
    assert "Counted on one real sample" in str(describe(workload))


def test_a_module_that_is_called_twice_is_one_module_with_two_calls() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            first, second = self.body
            return self.relu(second(self.relu(first(x))))  # type: ignore[no-any-return]

    description = describe(Shared(), input_shape=(4,), classes=2)
    assert (description.modules, description.module_calls) == (3, 4)
