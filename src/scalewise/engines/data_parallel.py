"""The study's eight steps, point to point through the default device (rank 0), each a phase of its own.

rank 0  load  scatter  broadcast  forward  gather  loss  scatter  backward  reduce  update
others        scatter  broadcast  forward  gather  idle  scatter  backward  reduce  idle
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor, nn

from scalewise.engines.eager import EagerEngine
from scalewise.engines.engine import Engine, Job
from scalewise.engines.holding import HoldsWhole
from scalewise.errors import UserError
from scalewise.step.feed import Batch, kept_bytes, make_feed
from scalewise.step.flat import flatten_parameters, trainable, views_of
from scalewise.step.left_out import is_left_out, make_model, refuse_unreached
from scalewise.step.losses import sum_losses
from scalewise.step.optimizers import make_optimizer
from scalewise.step.precision import autocast
from scalewise.step.wire import Wire
from scalewise.strategies.data_parallel import DataParallel
from scalewise.strategies.shares import share_sizes


def build(strategy: DataParallel, job: Job) -> Engine:
    if job.settings.execution == "graph":
        raise UserError("--execution graph is not possible: steps between ranks cannot be captured; use eager or auto")
    model = make_model(job.workload, job.data).to(job.place.device)
    if strategy.engine == "threads":
        _refuse_left_out(model)
        feed = make_feed(job.data, job.settings.load, job.place.device, _yet_to_come(model, job))
        return EagerEngine(job, model, feed, nn.DataParallel(model, list(range(job.place.gpus))))
    if job.settings.accumulate > 1:
        raise UserError(
            "data-parallel cannot accumulate: its loss is computed once, over the whole batch; use mirrored"
        )
    return RanksEngine(job, model)


def _refuse_left_out(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if is_left_out(parameter):
            raise UserError(
                f"torch.nn.DataParallel gives '{name}', which the model never uses, a gradient of zero, with which "
                "optimizers move it; use data-parallel without engine=threads"
            )


def _yet_to_come(model: nn.Module, job: Job) -> int:
    """Gradients and states, beside weights that are on the device already."""
    return kept_bytes(model, job.optimizer) - sum(each.nbytes for each in chain(model.parameters(), model.buffers()))


class RanksEngine(HoldsWhole):
    """A process per device; only rank 0 has data, loss and optimizer."""

    execution = "eager"

    def __init__(self, job: Job, model: nn.Module) -> None:
        self.job = job
        self.model = model
        root, world = job.place.rank == 0, job.place.world
        yet_to_come = _yet_to_come(model, job)
        self.feed = make_feed(job.data, job.settings.load, job.place.device, yet_to_come) if root else None
        self.optimizer = make_optimizer(job.optimizer, model.parameters(), job.learning_rate) if root else None
        self.trainable = trainable(model)
        self.parameters = flatten_parameters(model)
        self.gradients = [torch.empty_like(self.parameters) for _ in range(world - 1 if root else 1)]
        self.gradient_views = [views_of(flat, self.trainable) for flat in self.gradients]
        self.wire = Wire(job.place.device)
        self.batches: Iterator[tuple[int, Batch | None]] = iter(())
        self.seen: list[Tensor] = []
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
            self._lead(*batch, shares)
        elif self.job.place.rank < len(shares):
            self._follow(shares[self.job.place.rank])
        else:
            self.job.clock.lap("idle")

    def close(self) -> None:
        """Nothing is open."""

    def losses(self) -> Tensor:
        """Rank 0 knows them; the others learn them, so that all stop at a bad one."""
        known = torch.stack(self.seen).float() if self.seen else torch.zeros(self.steps)
        self.seen, self.steps = [], 0
        return sum_losses(known, self.job.place.device)

    def _lead(self, inputs: Tensor, targets: Tensor, shares: list[int]) -> None:
        lap, wire = self.job.clock.lap, self.wire
        others = range(1, len(shares))
        lap("load")
        mine, *theirs = inputs.split(shares)
        wire.send(list(zip(theirs, others, strict=True)))
        lap("scatter")
        wire.send([(self.parameters, rank) for rank in others])
        lap("broadcast")
        outputs = self._forward(mine)
        lap("forward")
        gathered = [outputs.new_empty((share, *outputs.shape[1:])) for share in shares[1:]]
        wire.receive(list(zip(gathered, others, strict=True)))
        lap("gather")
        whole = torch.cat([outputs.detach(), *gathered]).requires_grad_()
        with autocast(self.job.settings.precision, self.job.place.device):
            loss = self.job.workload.loss(whole, targets)
        loss.backward()
        lap("loss")
        mine, *theirs = whole.grad.split(shares)  # type: ignore[union-attr]
        wire.send(list(zip(theirs, others, strict=True)))
        lap("scatter")
        outputs.backward(mine)
        lap("backward")
        wire.receive(list(zip(self.gradients, others, strict=False)))
        for views in self.gradient_views[: len(others)]:
            torch._foreach_add_(self._own_gradients(), views)
        lap("reduce")
        self.optimizer.step()  # type: ignore[union-attr]
        self.optimizer.zero_grad()  # type: ignore[union-attr]
        lap("update")
        self.seen.append(loss.detach())

    def _follow(self, share: int) -> None:
        lap, wire = self.job.clock.lap, self.wire
        like, _ = self.job.data.example()
        inputs = torch.empty((share, *like.shape), dtype=like.dtype, device=self.job.place.device)
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
        own = [parameter.grad for parameter in self.trainable if parameter.grad is not None]
        if len(own) < len(self.trainable):
            refuse_unreached(self.model, [parameter for parameter in self.trainable if parameter.grad is None])
        return own

    def _forward(self, inputs: Tensor) -> Tensor:
        with autocast(self.job.settings.precision, self.job.place.device):
            return self.model(inputs)  # type: ignore[no-any-return]
