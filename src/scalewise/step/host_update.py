"""The update of weights in host memory: every rank sums the gradients of its slice of them, and updates it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from scalewise.step.flat import views_of
from scalewise.step.host_memory import shared_zeros
from scalewise.step.optimizers import state_after_a_step
from scalewise.strategies.shares import split

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class HostUpdate:
    """Element-wise optimizers only. Their state lives in host memory too, and so any rank can save all of it."""

    def __init__(
        self,
        make: MakeOptimizer,
        parameters: list[nn.Parameter],
        weights: Tensor,
        gradients: Tensor,
        rank: int,
        world: int,
    ) -> None:
        """`weights` are the parameters end to end; `gradients` has a row like that for each rank."""
        self.parameters = parameters
        mine = split(weights.numel(), world, rank)
        self.gradients = gradients[:, mine]
        self.slice = nn.Parameter(weights[mine])
        self.slice.grad = self.gradients[0]
        self.optimizer = make([self.slice])
        self.first = rank == 0
        self.tensors: dict[str, Tensor] = {}
        """By the name of the state: as long as the weights."""
        self.scalars: dict[str, Tensor] = {}
        """A step count, say: one for each parameter, as checkpoints have it."""
        for key, example in state_after_a_step(make, weights.dtype).items():
            if example.dim():
                self.tensors[key] = shared_zeros(tuple(weights.shape), example.dtype, rank, world)
            else:
                self.scalars[key] = shared_zeros((len(parameters),), example.dtype, rank, world)
        self.own: dict[str, Tensor] = {key: tensor[mine] for key, tensor in self.tensors.items()}
        self.own |= {key: scalar[0].clone() for key, scalar in self.scalars.items()}
        self.optimizer.state[self.slice] = self.own

    def step(self) -> None:
        """All gradients are there, and no rank reads weights meanwhile."""
        total, *others = self.gradients
        for other in others:
            total.add_(other)
        self.optimizer.step()
        if self.first:
            for key, scalar in self.scalars.items():
                scalar.copy_(self.own[key])

    def show_in(self, optimizer: torch.optim.Optimizer) -> None:
        """Let an optimizer of the whole model hold the state, as views, for checkpoints."""
        for number, parameter in enumerate(self.parameters):
            optimizer.state[parameter] = {
                **{key: views[number] for key, views in self._views().items()},
                **{key: scalar[number] for key, scalar in self.scalars.items()},
            }

    def take_from(self, optimizer: torch.optim.Optimizer) -> None:
        """What a checkpoint has put in place of the views."""
        views = self._views() | {key: list(scalar) for key, scalar in self.scalars.items()}
        for number, parameter in enumerate(self.parameters):
            for key, value in optimizer.state[parameter].items():
                if value.data_ptr() != views[key][number].data_ptr():
                    views[key][number].copy_(value)
        self.show_in(optimizer)

    def begin(self) -> None:
        """Steps follow: every rank counts on from what the first one took."""
        for key, scalar in self.scalars.items():
            self.own[key].copy_(scalar[0])

    def _views(self) -> dict[str, list[Tensor]]:
        return {key: views_of(tensor, self.parameters) for key, tensor in self.tensors.items()}
