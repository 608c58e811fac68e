"""Tests that each optimizer gives the same weights as torch's unfused one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from scalewise.core.errors import UserError
from scalewise.core.training_options import OPTIMIZERS
from scalewise.runtime.optimizers import make_optimizer
from tests.conftest import DEVICE_KIND

DEVICE = "cpu" if DEVICE_KIND == "cpu" else "cuda"
PLAIN: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adam": lambda model: torch.optim.Adam(model.parameters(), 0.1),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), 0.1),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), 0.1),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), 0.1),
    "adafactor": lambda model: torch.optim.Adafactor(model.parameters(), 0.1),
}


def after_three_steps(make: Callable[[nn.Module], torch.optim.Optimizer]) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Linear(4, 3, dtype=torch.float64).to(DEVICE)
    optimizer = make(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4, dtype=torch.float64, device=DEVICE)).square().sum().backward()
        optimizer.step()
    return model.weight.detach()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_equal_torchs_unfused_ones(name: str) -> None:
    weights = after_three_steps(lambda model: make_optimizer(name, model.parameters(), 0.1))
    torch.testing.assert_close(weights, after_three_steps(PLAIN[name]), rtol=0, atol=1e-12)


def test_an_unknown_name_is_answered_with_the_valid_ones() -> None:
    with pytest.raises(UserError, match=r"unknown optimizer 'adm'.*adam, adamw, sgd, momentum, adagrad"):
        make_optimizer("adm", nn.Linear(1, 1).parameters(), 0.1)
