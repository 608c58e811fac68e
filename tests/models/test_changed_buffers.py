"""Models that change their own buffers in forward are split by torch.export or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from scalewise.core.errors import UserError
from scalewise.models.export import ADVICE, exported_chain
from tests.tiny_cut import dropping


class Centred(nn.Module):
    """Subtracts the running mean of its inputs, which is a buffer."""

    mean: Tensor

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, value: Tensor) -> Tensor:
        if not self.training:
            return value - self.mean
        batch_mean = value.detach().mean(0)
        if self.in_place:
            self.mean.lerp_(batch_mean, 0.1)
        else:
            self.mean = 0.9 * self.mean + 0.1 * batch_mean
        return value - batch_mean


class Layers(nn.Module):
    def __init__(self, in_place: bool = True) -> None:
        super().__init__()
        self.first, self.centred, self.last = nn.Linear(6, 6), Centred(in_place), nn.Linear(6, 3)

    def forward(self, value: Tensor) -> Tensor:
        result: Tensor = self.last(torch.relu(self.centred(self.first(value))))
        return result


class Counted(Layers):
    """Changes a buffer of the model itself, between its layers."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, value: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(value)


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (Counted(), "'calls' in a module that is split at 'centred'"),
        (Layers(in_place=False), "'centred.mean' by replacing it with a new tensor"),
    ],
)
def test_a_buffer_whose_changes_would_be_lost_is_named(model: nn.Module, change: str) -> None:
    workload = replace(dropping(), name="own")
    with pytest.raises(UserError) as caught:
        exported_chain(workload, model, torch.randn(4, 6), [])
    assert str(caught.value) == (
        f"'own' cannot be split into stages: its forward changes the buffer {change}; change it in place with copy_, "
        f"in a module that is not split; or {ADVICE}"
    )


def test_a_buffer_that_is_changed_in_place_equals_that_of_the_model() -> None:
    torch.manual_seed(1)
    reference = Layers()
    torch.manual_seed(1)
    parts = exported_chain(dropping(), Layers(), inputs := torch.randn(4, 6), [])
    for training in (True, False):
        value = inputs
        for part in parts:
            value = part.module.train(training)(value)
        torch.testing.assert_close(value, reference.train(training)(inputs))
    [mean] = [tensor for part in parts for _, tensor in part.module.named_buffers()]
    assert mean.any()
    torch.testing.assert_close(mean, reference.centred.mean)
