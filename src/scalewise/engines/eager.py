"""The plain loop, on one rank or on each of several that hold the whole model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from scalewise.engines.engine import Job
from scalewise.engines.holding import HoldsWhole
from scalewise.step.clock import Clock
from scalewise.step.feed import Batch, Feed
from scalewise.step.flat import trainable
from scalewise.step.left_out import refuse_unreached
from scalewise.step.losses import sum_losses
from scalewise.step.optimizers import make_optimizer
from scalewise.step.precision import autocast
from scalewise.step.shards import shards_of


class EagerEngine(HoldsWhole):
    """`load, forward, loss, backward, (reduce,) update`, each told to the clock.

    `network` is the model as it is called: itself, or wrapped. Every shard's mean loss is weighted by its part of the
    global batch, so that gradients add up to those of one device, also where shards are uneven or empty.
    """

    execution = "eager"
    feed: Feed

    def __init__(
        self, job: Job, model: nn.Module, feed: Feed, network: nn.Module | None = None, *, averaged: bool = False
    ) -> None:
        """`averaged`: the wrapper divides gradients by the number of ranks, as DDP does by itself."""
        self.job = job
        self.model = model
        self.feed = feed
        self.network = network or model
        self.reduces = isinstance(network, DistributedDataParallel)
        self.scale = float(job.place.world) if averaged else 1.0
        self.optimizer: torch.optim.Optimizer | None = make_optimizer(
            job.optimizer, model.parameters(), job.learning_rate
        )
        self.pending: Iterator[tuple[Batch, float, bool]] = iter(())
        self.seen: list[Tensor] = []
        self.exchanged = trainable(model) if self.reduces else []
        self.unreached: set[int] = set()
        """Of those, the ones that the last backward has not come to yet: DDP waits for every one."""
        for number, parameter in enumerate(self.exchanged):
            parameter.register_post_accumulate_grad_hook(partial(_reached, self.unreached, number, job.clock))

    def start_epoch(self, batches: list[Tensor]) -> None:
        place = self.job.place
        shards = [shards_of(rows, place.world, place.rank, self.job.settings.accumulate) for rows in batches]
        feed = self.feed.batches([shard.rows for parts in shards for shard in parts])
        told = [(shard.weight * self.scale, shard is parts[-1]) for parts in shards for shard in parts]
        self.pending = ((batch, *what) for batch, what in zip(feed, told, strict=True))

    def step(self) -> None:
        job, clock = self.job, self.job.clock
        clock.start()
        total: Tensor | None = None
        last = False
        while not last:
            (inputs, targets), weight, last = next(self.pending)
            clock.lap("load")
            with self._last_part(last), autocast(job.settings.precision, job.place.device):
                outputs = self.network(inputs)
                clock.lap("forward")
                loss = job.workload.loss(outputs, targets)
            if weight != 1.0:
                loss = loss * weight
            clock.lap("loss")
            loss.backward()
            if self.reduces and last:
                clock.lap("backward", noted=True)
                clock.lap("reduce")
            else:
                clock.lap("backward")
            total = loss.detach() if total is None else total + loss.detach()
        self._update()
        self.seen.append(total)  # type: ignore[arg-type]

    def losses(self) -> Tensor:
        own = torch.stack(self.seen).float() / self.scale if self.seen else torch.empty(0)
        self.seen = []
        return sum_losses(own, self.job.place.device)

    def close(self) -> None:
        """Nothing is open."""

    def _update(self) -> None:
        assert self.optimizer is not None
        if self.unreached:
            refuse_unreached(self.model, [self.exchanged[number] for number in self.unreached])
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.job.clock.lap("update")

    def _last_part(self, last: bool) -> AbstractContextManager[None]:
        """Gradients of all parts but the last stay on the rank."""
        self.unreached.update(range(len(self.exchanged)))
        if last or not isinstance(self.network, DistributedDataParallel):
            return nullcontext()
        return self.network.no_sync()


def _reached(unreached: set[int], number: int, clock: Clock, _: Tensor) -> None:
    unreached.discard(number)
    clock.note()
