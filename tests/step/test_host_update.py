"""The update on the host is that of one optimizer, gradients added up; its state goes to and comes from checkpoints."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from scalewise.step.flat import flatten_parameters, trainable, views_of
from scalewise.step.host_update import HostUpdate
from scalewise.step.optimizers import ELEMENTWISE, make_optimizer

RANKS = 3


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()


class Whole:
    """The textbook: one optimizer, gradients added up beforehand."""

    def __init__(self, name: str) -> None:
        self.model = model()
        self.parameters = trainable(self.model)
        self.optimizer = make_optimizer(name, self.parameters, 0.1)

    def step(self, gradients: torch.Tensor) -> None:
        for parameter, gradient in zip(self.parameters, views_of(gradients.sum(0), self.parameters), strict=True):
            parameter.grad = gradient
        self.optimizer.step()


class Sliced:
    """The one slice that is everything, of the gradients of several ranks."""

    def __init__(self, name: str) -> None:
        self.model = model()
        self.parameters = trainable(self.model)
        self.weights = flatten_parameters(self.model)
        self.gradients = torch.zeros(RANKS, self.weights.numel(), dtype=torch.float64)
        make = partial(make_optimizer, name, learning_rate=0.1)
        self.update = HostUpdate(make, self.parameters, self.weights, self.gradients, 0, 1)
        self.optimizer = make_optimizer(name, self.parameters, 0.1)
        self.update.show_in(self.optimizer)

    def step(self, gradients: torch.Tensor) -> None:
        self.gradients.copy_(gradients)
        self.update.step()


def gradients_of(steps: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return [torch.randn(RANKS, 23, dtype=torch.float64, generator=random) for _ in range(steps)]


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_gradients_are_summed_and_the_state_is_that_of_the_whole(name: str) -> None:
    whole, sliced = Whole(name), Sliced(name)
    for gradients in gradients_of(4):
        whole.step(gradients)
        sliced.step(gradients)
    torch.testing.assert_close(sliced.parameters, whole.parameters, rtol=0, atol=1e-12)
    for mine, theirs in zip(sliced.parameters, whole.parameters, strict=True):
        state = sliced.optimizer.state[mine]
        torch.testing.assert_close(state, dict(whole.optimizer.state[theirs]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_a_state_put_there_is_gone_on_from(name: str) -> None:
    whole, sliced = Whole(name), Sliced(name)
    *before, after = gradients_of(3)
    for gradients in before:
        whole.step(gradients)
    for mine, theirs in zip(sliced.parameters, whole.parameters, strict=True):
        mine.data.copy_(theirs)
        sliced.optimizer.state[mine] = {
            key: value.clone() for key, value in whole.optimizer.state[theirs].items() if value is not None
        }
    sliced.update.take_from(sliced.optimizer)
    sliced.update.begin()
    whole.step(after)
    sliced.step(after)
    torch.testing.assert_close(sliced.parameters, whole.parameters, rtol=0, atol=1e-12)


def test_every_rank_updates_its_own_slice() -> None:
    weights = torch.zeros(7)
    gradients = torch.ones(RANKS, 7)
    make = partial(make_optimizer, "sgd", learning_rate=1.0)
    parameters = [nn.Parameter(weights)]
    seen = []
    for rank in range(RANKS):
        HostUpdate(make, parameters, weights, gradients, rank, RANKS).step()  # SGD has no state to share
        seen.append(weights.tolist())
    assert seen == [[-3.0] * 3 + [0.0] * 4, [-3.0] * 5 + [0.0] * 2, [-3.0] * 7]
