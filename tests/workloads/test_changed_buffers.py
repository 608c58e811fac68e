"""Models that change buffers of their own, cut by torch.export."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from scalewise.errors import UserError
from scalewise.workloads.exported import ADVICE, exported_chain
from tests.tiny_cut import dropping


class Centred(nn.Module):
    """Remembers the mean of what it sees."""

    mean: Tensor

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, value: Tensor) -> Tensor:
        if not self.training:
            return value - self.mean
        now = value.detach().mean(0)
        if self.in_place:
            self.mean.lerp_(now, 0.1)
        else:
            self.mean = 0.9 * self.mean + 0.1 * now
        return value - now


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
        (Counted(), "'calls' in a module that is cut at 'centred'"),
        (Layers(in_place=False), "'centred.mean' by putting another tensor in its place"),
    ],
)
def test_a_buffer_that_a_cut_would_lose_is_named(model: nn.Module, change: str) -> None:
    workload = replace(dropping(), name="own")
    with pytest.raises(UserError) as answer:
        exported_chain(workload, model, torch.randn(4, 6), [])
    assert str(answer.value) == (
        f"'own' cannot be cut into stages: its forward changes the buffer {change}; change it in place, as copy_ does, "
        f"in a module that is not cut; or {ADVICE}"
    )


def test_a_buffer_that_is_changed_in_place_between_the_cuts_stays_as_the_models() -> None:
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
