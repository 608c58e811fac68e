"""One device: the plain loop, or the whole step as a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from scalewise.engines.engine import Engine, Job
from scalewise.engines.graph import GraphEngine, can_capture
from scalewise.errors import UserError
from scalewise.step.feed import Batch, Feed, Resident, make_feed
from scalewise.step.optimizers import make_optimizer
from scalewise.step.precision import autocast
from scalewise.step.shards import shards_of


def build(job: Job) -> Engine:
    """Graph where shapes are static and the data resident on a GPU, else eager."""
    feed = make_feed(job.data, job.settings.load, job.place.device)
    execution = job.settings.execution
    reason = can_capture(job, feed)
    if execution == "graph" and reason:
        raise UserError(f"--execution graph is not possible: {reason}; use --execution eager or auto")
    model = job.workload.model().to(job.place.device)
    if execution != "eager" and not reason and isinstance(feed, Resident):
        return GraphEngine(job, model, feed)
    return EagerEngine(job, model, feed)


class EagerEngine:
    """`forward, loss, backward, update`, each told to the clock."""

    execution = "eager"

    def __init__(self, job: Job, model: nn.Module, feed: Feed) -> None:
        self.job = job
        self.model = model
        self.feed = feed
        self.optimizer = make_optimizer(job.optimizer, model.parameters(), job.learning_rate)
        self.pending: Iterator[tuple[Batch, float, bool]] = iter(())
        self.seen: list[Tensor] = []

    def start_epoch(self, batches: list[Tensor]) -> None:
        self.seen = []
        shards = [shards_of(rows, 1, 0, self.job.settings.accumulate) for rows in batches]
        feed = self.feed.batches([shard.rows for parts in shards for shard in parts])
        plan = [(shard.weight, shard is parts[-1]) for parts in shards for shard in parts]
        self.pending = ((batch, *told) for batch, told in zip(feed, plan, strict=True))

    def step(self) -> None:
        clock, job = self.job.clock, self.job
        clock.start()
        total: Tensor | None = None
        last = False
        while not last:
            (inputs, targets), weight, last = next(self.pending)
            clock.lap("load")
            with autocast(job.settings.precision, job.place.device):
                outputs = self.model(inputs)
                clock.lap("forward")
                loss = job.workload.loss(outputs, targets)
            if weight != 1.0:
                loss = loss * weight
            clock.lap("loss")
            loss.backward()  # type: ignore[no-untyped-call]
            clock.lap("backward")
            total = loss.detach() if total is None else total + loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()
        clock.lap("update")
        self.seen.append(total)  # type: ignore[arg-type]

    def losses(self) -> Tensor:
        return torch.stack(self.seen).float().cpu() if self.seen else torch.empty(0)
