"""Engine of the data-parallel strategy (the study's DataParallel).

rank 0  load  scatter  broadcast  forward  gather  loss  scatter  backward  reduce  update
others        scatter  broadcast  forward  gather  idle  scatter  backward  reduce  idle
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor, nn

from scalewise.core.errors import UserError
from scalewise.engines.base import EagerEngine, Engine, Job, WholeModelEngine
from scalewise.engines.communication import Wire
from scalewise.models.parameters import (
    flatten_parameters,
    is_left_out,
    make_model,
    refuse_unreached,
    trainable,
    views_of,
)
from scalewise.runtime.feed import Batch, kept_bytes, make_feed
from scalewise.runtime.optimizers import autocast, make_optimizer, sum_losses
from scalewise.strategies.data_parallel import DataParallel
from scalewise.strategies.plan import share_sizes


def build(strategy: DataParallel, job: Job) -> Engine:
    model = make_model(job.workload, job.data).to(job.place.device)
    if strategy.engine == "threads":
        _refuse_unused_parameters(model)
        feed = make_feed(job.data, job.settings.load, job.place.device, _remaining_bytes(model, job))
        return EagerEngine(job, model, feed, nn.DataParallel(model, list(range(job.place.gpus))))
    if job.settings.accumulate > 1:
        raise UserError(
            "data-parallel cannot accumulate gradients, because it computes one loss over the whole batch; use mirrored"
        )
    return RanksEngine(job, model)


def _refuse_unused_parameters(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if is_left_out(parameter):
            raise UserError(
                f"torch.nn.DataParallel gives the unused parameter '{name}' a gradient of zero, with which the "
                "optimizer changes it; use data-parallel without engine=threads"
            )


def _remaining_bytes(model: nn.Module, job: Job) -> int:
    """Return the bytes of gradients and optimizer state, which are not yet on the device."""
    return kept_bytes(model, job.optimizer) - sum(
        tensor.nbytes for tensor in chain(model.parameters(), model.buffers())
    )


class RanksEngine(WholeModelEngine):
    """Engine with one process per device, of which only rank 0 has the data, the loss and the optimizer."""

    execution = "eager"

    def __init__(self, job: Job, model: nn.Module) -> None:
        self.job = job
        self.model = model
        root, world = job.place.rank == 0, job.place.world
        remaining_bytes = _remaining_bytes(model, job)
        self.feed = make_feed(job.data, job.settings.load, job.place.device, remaining_bytes) if root else None
        self.optimizer = make_optimizer(job.optimizer, model.parameters(), job.learning_rate) if root else None
        self.trainable = trainable(model)
        self.parameters = flatten_parameters(model)
        self.gradients = [torch.empty_like(self.parameters) for _ in range(world - 1 if root else 1)]
        self.gradient_views = [views_of(flat, self.trainable) for flat in self.gradients]
        self.wire = Wire(job.place.device)
        self.batches: Iterator[tuple[int, Batch | None]] = iter(())
        self.step_losses: list[Tensor] = []
        self.steps = 0

    def start_epoch(self, batches: list[Tensor]) -> None:
        sizes = [len(rows) for rows in batches]
        self.batches = zip(sizes, self.feed.batches(batches) if self.feed else [None] * len(sizes), strict=True)

    def step(self) -> None:
        self.job.clock.start()
        size, batch = next(self.batches)
        self.steps += 1
        shares = [share for share in share_sizes(size, self.job.place.world) if share]
        if batch is not None:
            self._step_on_root(*batch, shares)
        elif self.job.place.rank < len(shares):
            self._step_on_others(shares[self.job.place.rank])
        else:
            self.job.clock.lap("idle")

    def close(self) -> None:
        """Do nothing: no connections are open."""

    def losses(self) -> Tensor:
        """Send rank 0's losses to all ranks, so that all of them stop at a loss that is not finite."""
        losses = torch.stack(self.step_losses).float() if self.step_losses else torch.zeros(self.steps)
        self.step_losses, self.steps = [], 0
        return sum_losses(losses, self.job.place.device)

    def _step_on_root(self, inputs: Tensor, targets: Tensor, shares: list[int]) -> None:
        lap, wire = self.job.clock.lap, self.wire
        others = range(1, len(shares))
        lap("load")
        own_inputs, *other_inputs = inputs.split(shares)
        wire.send(list(zip(other_inputs, others, strict=True)))
        lap("scatter")
        wire.send([(self.parameters, rank) for rank in others])
        lap("broadcast")
        outputs = self._forward(own_inputs)
        lap("forward")
        gathered = [outputs.new_empty((share, *outputs.shape[1:])) for share in shares[1:]]
        wire.receive(list(zip(gathered, others, strict=True)))
        lap("gather")
        whole = torch.cat([outputs.detach(), *gathered]).requires_grad_()
        with autocast(self.job.settings.precision, self.job.place.device):
            loss = self.job.workload.loss(whole, targets)
        loss.backward()
        lap("loss")
        own_gradient, *other_gradients = whole.grad.split(shares)  # type: ignore[union-attr]
        wire.send(list(zip(other_gradients, others, strict=True)))
        lap("scatter")
        outputs.backward(own_gradient)
        lap("backward")
        wire.receive(list(zip(self.gradients, others, strict=False)))
        for views in self.gradient_views[: len(others)]:
            torch._foreach_add_(self._own_gradients(), views)
        lap("reduce")
        self.optimizer.step()  # type: ignore[union-attr]
        self.optimizer.zero_grad()  # type: ignore[union-attr]
        lap("update")
        self.step_losses.append(loss.detach())

    def _step_on_others(self, share: int) -> None:
        lap, wire = self.job.clock.lap, self.wire
        example, _ = self.job.data.example()
        inputs = torch.empty((share, *example.shape), dtype=example.dtype, device=self.job.place.device)
        wire.receive([(inputs, 0)])
        lap("scatter")
        wire.receive([(self.parameters, 0)])
        lap("broadcast")
        outputs = self._forward(inputs)
        lap("forward")
        wire.send([(outputs.detach(), 0)])
        lap("gather")
        gradient = torch.empty_like(outputs)
        wire.receive([(gradient, 0)])
        lap("scatter")
        outputs.backward(gradient)
        lap("backward")
        torch._foreach_copy_(self.gradient_views[0], self._own_gradients())
        wire.send([(self.gradients[0], 0)])
        self.model.zero_grad()
        lap("reduce")

    def _own_gradients(self) -> list[Tensor]:
        gradients = [parameter.grad for parameter in self.trainable if parameter.grad is not None]
        if len(gradients) < len(self.trainable):
            refuse_unreached(self.model, [parameter for parameter in self.trainable if parameter.grad is None])
        return gradients

    def _forward(self, inputs: Tensor) -> Tensor:
        with autocast(self.job.settings.precision, self.job.place.device):
            return self.model(inputs)  # type: ignore[no-any-return]
