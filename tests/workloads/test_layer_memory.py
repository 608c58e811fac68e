"""What layers keep and need, counted without numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from scalewise.data.data import Data, DataRequest
from scalewise.workloads.layer_memory import layers_of
from scalewise.workloads.resolve import resolve
from scalewise.workloads.workload import Workload

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


def test_a_layer_keeps_what_its_backward_reads() -> None:
    """Four samples: the hidden 8 numbers are kept once, by ReLU; a Linear layer keeps what came before it."""
    own = workload_of(small, torch.zeros(9, 3), torch.zeros(9, 5))
    found = layers_of(own, own.data(DataRequest()), 4, CPU)
    assert [layer.module for layer in found] == ["0", "1", "2", ""]
    assert [layer.parameters for layer in found] == [(96, 32), (), (160, 20), ()]
    assert [layer.kept_bytes for layer in found[:2]] == [0, 4 * 8 * 4]
    # The outputs are held until the step is over; the loss keeps their distance from the targets.
    assert found[2].kept_bytes == 4 * 5 * 4
    assert found[3].kept_bytes == 4 * 5 * 4 + 4
    # Backward in ReLU has the gradient that came and the one that goes.
    assert found[1].backward_bytes >= 2 * 4 * 8 * 4


def test_what_other_layers_made_is_told_apart() -> None:
    own = workload_of(small, torch.zeros(9, 3), torch.zeros(9, 5))
    first, middle, last, _ = layers_of(own, own.data(DataRequest()), 4, CPU)
    hidden = 4 * 8 * 4
    # ReLU has before it what Linear put out, which nobody keeps, and behind it the gradient that Linear made.
    assert (first.passed_bytes, middle.passed_bytes, last.passed_bytes) == (hidden, 0, 0)
    assert middle.forward_of == ((0, hidden),)
    assert dict(middle.backward_of)[2] >= hidden


def test_functions_behind_a_layer_are_its_own_in_backward_too() -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 5)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.last(torch.tanh(self.first(inputs)))
            return outputs

    own = workload_of(Between, torch.zeros(9, 3), torch.zeros(9, 5))
    first, _, _ = layers_of(own, own.data(DataRequest()), 4, CPU)
    # The gradient that tanh makes of the one that came.
    assert first.backward_bytes - sum(nbytes for _, nbytes in first.backward_of) == 4 * 8 * 4


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
        found = layers_of(wide, data, 1, device)
        assert found
        assert all(layer.kept_bytes < matrix for layer in found if layer.module.startswith("1.attention"))


def test_a_model_that_needs_numbers_is_not_counted() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs * self.weight if float(inputs.sum()) >= 0 else inputs

    own = Workload(
        "own", Looks, lambda _: Data("own", (torch.zeros(4, 3), torch.zeros(4, 3))), nn.functional.mse_loss, (3,)
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
    assert 32_768 < first.kept_bytes < 32_768 + 8 * 5 * 4 * 16 * 4
