"""Layers are counted once and completely, on the meta device if possible."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from scalewise.core.errors import UserError
from scalewise.data.dataset import Data, DataRequest
from scalewise.models.inspection import Counts, count
from scalewise.models.workload import Workload


def counted(model: type[nn.Module], *shape: int) -> Counts:
    return count(Workload("test", model, no_data, functional.mse_loss, shape))


def no_data(_request: DataRequest) -> Data:
    return Data("nothing")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(16, 32, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.cells(inputs)[0]
        return outputs


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.heads(inputs, inputs, inputs, need_weights=False)[0]
        return outputs


def needs_values(model: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass that reads the values of its input, which the meta device does not have."""

    class NeedsValues(model):  # type: ignore[misc, valid-type]
        def forward(self, inputs: Tensor) -> Tensor:
            assert inputs.sum().item() == 0
            outputs: Tensor = super().forward(inputs)
            return outputs

    return NeedsValues


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_recurrent_layers_are_counted(device: str) -> None:
    counts = counted(Recurrent if device == "meta" else needs_values(Recurrent), 5, 16)
    assert counts.device == device
    assert counts.forward_flops == 2 * 5 * (16 + 32) * (4 * 32)
    assert [(layer.name, layer.output_shape) for layer in counts.layers] == [("LSTM-1", (5, 32))]


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_attention_is_counted_with_its_projections(device: str) -> None:
    counts = counted(Attending if device == "meta" else needs_values(Attending), 7, 32)
    projections, attention = 2 * 7 * 32 * (4 * 32), 2 * 2 * 7 * 7 * 32
    assert counts.device == device
    assert counts.forward_flops == projections + attention
    [layer] = counts.layers
    assert layer.name == "MultiheadAttention-1"
    assert layer.parameters == 4 * (32 * 32 + 32)
    assert layer.activation_bytes == 4 * 7 * 32


def test_counting_restores_the_settings_of_torch() -> None:
    before = (torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled(), torch.get_rng_state().tolist())
    counted(needs_values(Attending), 7, 32)
    after = (torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled(), torch.get_rng_state().tolist())
    assert before == after


class Twice(nn.Module):
    """Has a layer that is used twice, a parameter of its own, views, and a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6, bias=False)
        self.scale = nn.Parameter(torch.ones(6))
        self.views = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Flatten(), nn.Identity(), nn.Dropout())
        self.unused = nn.Linear(2, 2, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.views(self.layer(self.layer(inputs))) * self.scale
        return outputs


def test_shared_parameters_count_once_and_views_not_at_all() -> None:
    counts = counted(Twice, 6)
    rows = [
        (layer.name, layer.module, layer.parameters, layer.activation_bytes, layer.flops) for layer in counts.layers
    ]
    assert rows == [
        ("Linear-1", "layer", 36, 24, 72),
        ("Linear-2", "layer", 0, 24, 72),
        ("Twice-3", "", 6 + 4, 24, 0),
    ]
    assert counts.forward_flops == 144
    # The first call needs no gradient of its input.
    assert counts.training_flops == 144 + 72 + 144


def test_a_model_that_fails_is_reported_in_one_sentence() -> None:
    with pytest.raises(UserError, match="'test' fails on one sample: RuntimeError: mat1 and mat2 shapes"):
        counted(Twice, 5)
