"""Stages on different ranks with micro-batches, on torch.distributed.pipelining.

rank 0  load  forward  forward  idle     backward  idle     backward  update
rank 1  idle           forward  loss  backward  forward  loss  backward  update
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from scalewise.engines.engine import Job
from scalewise.engines.line import Line
from scalewise.engines.pipeline_stage import HostStage, TimedStage
from scalewise.engines.stages import HoldsStages
from scalewise.errors import UserError
from scalewise.plan import Footprint
from scalewise.step.feed import Batch
from scalewise.step.precision import autocast
from scalewise.step.shards import Shard, shards_of
from scalewise.strategies.filling import Filling
from scalewise.strategies.microbatches import given_microbatches, without_costs
from scalewise.strategies.pipeline import Pipeline
from scalewise.strategies.strategy import Backend
from scalewise.workloads.chain import Passed
from scalewise.workloads.footprint import norms_batches


class PipelineEngine(HoldsStages):
    """Every step has as many micro-batches of the same size: short batches are padded with samples of no weight."""

    def __init__(self, strategy: Pipeline, job: Job, line: Line) -> None:
        if job.settings.accumulate > 1:
            raise UserError(
                f"a pipeline computes a batch in parts already: use its option microbatches={job.settings.accumulate} "
                f"in place of --accumulate {job.settings.accumulate}"
            )
        self.count = self.size = 0
        self.norms_batches = False
        backend: Backend = "nccl" if dist.get_backend(line.group) == "nccl" else "gloo"
        share = -(-job.settings.batch // line.parts)

        def filling(known: Footprint) -> Filling:
            return strategy.filling(known, len(line.ranks), share, backend)

        def samples_for(model: nn.Module, known: Footprint) -> int:
            norms = self.norms_batches = norms_batches(model)
            if known.sections:
                chosen = filling(replace(known, norms_batches=norms))
                self.count, self.size = chosen.number, chosen.size
            else:  # of a model that is exported for so many samples, costs are known too late
                given, devices = strategy.microbatches, len(line.ranks)
                self.count, self.size = (
                    given_microbatches(given, share, devices, strategy.schedule)
                    if given
                    else without_costs(share, devices, strategy.schedule, norms_batches=norms)
                )
            return self.size

        super().__init__(
            job,
            line,
            strategy.cut,
            samples_for,
            lambda known: filling(replace(known, microbatches=self.count, norms_batches=self.norms_batches)).ranges,
            strategy.balance,
            strategy.stages_each(len(line.ranks)),
            strategy.checkpoint,
        )
        self.known = replace(self.known, microbatches=self.count)
        self.loss = WeightedLoss(job, self.size)
        self.timed = stages = [self._torch_stage(number) for number in self.stages]
        options: dict[str, Any] = {"loss_fn": self.loss, "scale_grads": False}
        # What fails is raised as well, and said in one sentence; torch logs all of its schedule.
        logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)
        self.schedule: Any
        if len(stages) > 1:
            self.schedule = ScheduleInterleaved1F1B(stages, self.count, **options)  # type: ignore[arg-type]
        else:
            kind = ScheduleGPipe if strategy.schedule == "gpipe" else Schedule1F1B
            self.schedule = kind(stages[0], self.count, **options)
        # An older torch always puts the outputs together.
        self.asked = {"return_outputs": False} if "return_outputs" in signature(self.schedule.step).parameters else {}
        self.pending: Iterator[tuple[Shard, Batch | None]] = iter(())

    def start_epoch(self, batches: list[Tensor]) -> None:
        shards = [shards_of(rows, self.line.parts, self.line.part)[0] for rows in batches]
        rows = [self.padded(shard.rows, self.count * self.size) for shard in shards]
        given = self.feed.batches(rows) if self.feed else [None] * len(rows)
        self.pending = zip(shards, given, strict=True)

    def step(self) -> None:
        self.job.clock.start()
        shard, batch = next(self.pending)
        if batch:
            self.job.clock.lap("load")
        self.loss.begin(shard)
        for stage in self.timed:
            stage.samples, stage.size = len(shard.rows) if shard.weight else 0, self.size
        inputs = (batch[0],) if self.first and batch else ()
        self.schedule.step(*inputs, target=batch[1] if self.last and batch else None, **self.asked)
        self._reduce()
        self._update()
        if self.last:
            self.seen.append(self.loss.total)

    def _reduce(self) -> None:
        """Other lines have other gradients; here there is one."""

    def _torch_stage(self, number: int) -> TimedStage:
        """Shapes are told beforehand, else torch finds them by sending a micro-batch through."""
        stage, device = self.stages[number], self.job.place.device
        like, _ = self.job.data.example()
        before = stage.before.tensors if stage.before else [Passed(tuple(like.shape), like.dtype, learns=False)]
        through_host = device.type == "cuda" and dist.get_backend(self.line.group) == "gloo"
        kind = HostStage if through_host else TimedStage
        return kind(
            self.job.clock,
            stage,
            number,
            len(self.ranges),
            torch.device("cpu") if through_host else device,
            input_args=_like(before, self.size),
            output_args=_like(stage.behind.tensors, self.size),
            group=self.line.group,
        )


class WeightedLoss:
    """The loss of one micro-batch after the other, each with its part of the batch as weight."""

    def __init__(self, job: Job, size: int) -> None:
        self.job, self.size = job, size
        self.shard = Shard(torch.empty(0), 0.0)
        self.number = 0
        self.total = torch.zeros((), device=job.place.device)

    def begin(self, shard: Shard) -> None:
        self.shard, self.number = shard, 0
        self.total = torch.zeros((), device=self.job.place.device)

    def __call__(self, given: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        [outputs] = given
        whole = len(self.shard.rows)
        real = min(max(whole - self.number * self.size, 0), self.size)
        self.number += 1
        with autocast(self.job.settings.precision, self.job.place.device):
            loss = self.job.workload.loss(outputs[: real or 1], targets[: real or 1])
        loss = loss * (self.shard.weight * real / whole)
        self.total = self.total + loss.detach()
        self.job.clock.lap("loss")
        return loss


def _like(passed: Sequence[Passed], samples: int) -> tuple[Tensor, ...]:
    return tuple(each.empty(samples, "meta").requires_grad_(each.learns) for each in passed)
