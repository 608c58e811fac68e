"""Memory of layers, counted from tensors without values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from scalewise.data.dataset import Data, DataRequest
from scalewise.models.resolve import resolve
from scalewise.models.workload import Workload
from scalewise.runtime.layer_memory import layers_of

CPU = torch.device("cpu")


def workload_of(model: Callable[[], nn.Module], inputs: Tensor, targets: Tensor) -> Workload:
    return Workload(
        "own",
        model,
        lambda _: Data("own", (inputs, targets)),
        lambda outputs, targets: (outputs - targets).square().mean(),
        tuple(inputs.shape[1:]),
    )


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5))


def test_a_layer_keeps_the_tensors_that_its_backward_reads() -> None:
    """With four samples: the 8 hidden features are kept once, by ReLU; a Linear layer keeps its input."""
    own = workload_of(small, torch.zeros(9, 3), torch.zeros(9, 5))
    layers = layers_of(own, own.data(DataRequest()), 4, CPU)
    assert [layer.module for layer in layers] == ["0", "1", "2", ""]
    assert [layer.parameters for layer in layers] == [(96, 32), (), (160, 20), ()]
    assert [layer.kept_bytes for layer in layers[:2]] == [0, 4 * 8 * 4]
    # Outputs exist until the end of the step; the loss keeps their difference from the targets.
    assert layers[2].kept_bytes == 4 * 5 * 4
    assert layers[3].kept_bytes == 4 * 5 * 4 + 4
    # Backward of ReLU needs the gradients of its output and of its input.
    assert layers[1].backward_bytes >= 2 * 4 * 8 * 4


def test_bytes_allocated_by_other_layers_are_separate() -> None:
    own = workload_of(small, torch.zeros(9, 3), torch.zeros(9, 5))
    first, middle, last, _ = layers_of(own, own.data(DataRequest()), 4, CPU)
    hidden = 4 * 8 * 4
    # In forward, ReLU reads the output of Linear, which no layer keeps; in backward, the gradient from the last layer.
    assert (first.passed_bytes, middle.passed_bytes, last.passed_bytes) == (hidden, 0, 0)
    assert middle.forward_by_layer == ((0, hidden),)
    assert dict(middle.backward_by_layer)[2] >= hidden


def test_backward_of_functions_after_a_layer_counts_for_that_layer() -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 5)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.last(torch.tanh(self.first(inputs)))
            return outputs

    own = workload_of(Between, torch.zeros(9, 3), torch.zeros(9, 5))
    first, _, _ = layers_of(own, own.data(DataRequest()), 4, CPU)
    # Backward of tanh allocates the gradient of its input.
    assert first.backward_bytes - sum(nbytes for _, nbytes in first.backward_by_layer) == 4 * 8 * 4


@pytest.mark.slow
def test_bytes_grow_with_the_samples_and_weights_do_not() -> None:
    unet = resolve("unet")
    data = unet.data(DataRequest(samples=4))
    few, many = (layers_of(unet, data, samples, CPU) for samples in (2, 4))
    assert sum(layer.kept_bytes for layer in many[:-1]) == 2 * sum(layer.kept_bytes for layer in few[:-1])
    assert [layer.parameters for layer in few] == [layer.parameters for layer in many]


def test_attention_does_not_keep_its_matrix() -> None:
    wide = resolve("transformer:layers=1,width=32,heads=4,context=256")
    data = wide.data(DataRequest(samples=2))
    matrix = 4 * 256 * 256 * 4
    for device in (CPU, torch.device("cuda")):
        layers = layers_of(wide, data, 1, device)
        assert layers
        assert all(layer.kept_bytes < matrix for layer in layers if layer.module.startswith("1.attention"))


def test_a_model_that_reads_values_is_not_counted() -> None:
    class ReadsValues(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs * self.weight if float(inputs.sum()) >= 0 else inputs

    own = Workload(
        "own", ReadsValues, lambda _: Data("own", (torch.zeros(4, 3), torch.zeros(4, 3))), nn.functional.mse_loss, (3,)
    )
    assert layers_of(own, own.data(DataRequest()), 2, CPU) == ()


def test_weights_are_cast_to_bf16_and_their_casts_are_kept() -> None:
    own = workload_of(small, torch.zeros(9, 3), torch.zeros(9, 5))
    first, *_ = layers_of(own, own.data(DataRequest()), 4, CPU, "bf16")
    assert first.parameters == (96, 32)
    assert first.kept_bytes == 4 * 3 * 2  # its inputs, cast; backward reads no weights of a first layer


def test_an_lstm_keeps_the_workspace_of_its_library() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory = nn.LSTM(8, 16)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.memory(inputs.transpose(0, 1))[0][-1]
            return outputs

    own = workload_of(Remembers, torch.zeros(9, 5, 8), torch.zeros(9, 16))
    first, *_ = layers_of(own, own.data(DataRequest()), 4, CPU)
    assert 32_768 < first.kept_bytes < 32_768 + 10 * 5 * 4 * 16 * 4  # torch 2.10 keeps 900 bytes more than 2.13
