"""Consecutive stages on different ranks, one batch at a time.

rank 0  load  forward  send  idle                  receive  backward  update
rank 1  idle  receive        forward  loss  backward  send  update
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from scalewise.engines.engine import Engine, Job
from scalewise.engines.line import Line
from scalewise.engines.stages import HoldsStages
from scalewise.step.feed import Batch
from scalewise.step.precision import autocast
from scalewise.step.shards import Shard, shards_of
from scalewise.strategies.layers import Layers


def build(strategy: Layers, job: Job) -> Engine:
    return LayersEngine(strategy, job, Line(tuple(range(job.place.world))))


class LayersEngine(HoldsStages):
    """One stage per rank."""

    def __init__(self, strategy: Layers, job: Job, line: Line) -> None:
        share = -(-job.settings.batch // line.parts)
        size = -(-share // job.settings.accumulate)
        stages = len(line.ranks)
        super().__init__(
            job,
            line,
            strategy.cut,
            lambda *_: size,
            lambda known: strategy.ranges(known, stages, size),
            strategy.balance,
        )
        self.known = replace(self.known, microbatches=job.settings.accumulate)
        [(self.number, self.stage)] = self.stages.items()
        self.notice = torch.zeros(1, dtype=torch.uint8, device=job.place.device)
        self.pending: Iterator[tuple[Shard, Batch | None, bool]] = iter(())

    def start_epoch(self, batches: list[Tensor]) -> None:
        line, fixed = self.line, self.fixed_batch
        shards = [shards_of(rows, line.parts, line.part, self.job.settings.accumulate) for rows in batches]
        flat = [(shard, shard is parts[-1]) for parts in shards for shard in parts]
        rows = [self.padded(shard.rows, fixed) for shard, _ in flat]
        given = self.feed.batches(rows) if self.feed else [None] * len(flat)
        self.pending = ((shard, batch, last) for (shard, last), batch in zip(flat, given, strict=True))

    def step(self) -> None:
        self.job.clock.start()
        last = False
        total: Tensor | None = None
        while not last:
            shard, batch, last = next(self.pending)
            loss = self._pass(shard, batch)
            if loss is not None:
                total = loss if total is None else total + loss
        self._reduce()
        self._update()
        if total is not None:
            self.seen.append(total)

    def _reduce(self) -> None:
        """Other lines have other gradients; here there is one."""

    def _pass(self, shard: Shard, batch: Batch | None) -> Tensor | None:
        """Forward and backward; the loss, on the last stage."""
        lap, samples = self.job.clock.lap, self.fixed_batch or len(shard.rows)
        if batch:
            lap("load")
        inputs = (batch[0],) if self.first and batch else self._receive(samples)
        outputs = self.stage(*inputs)
        lap("forward")
        loss: Tensor | None = None
        if self.last:
            assert batch is not None
            loss = self._loss(outputs[0], batch[1], shard)
            lap("loss")
            loss.backward()
        else:
            self._send(outputs, self.line.home(self.number + 1))
            self._backward(outputs, samples)
        lap("backward")
        if not self.first:
            gradients = [
                torch.zeros_like(each) if each.grad is None else each.grad for each in inputs if each.requires_grad
            ]
            self._send(gradients, self.line.home(self.number - 1))
        return loss.detach() if loss is not None else None

    def _loss(self, outputs: Tensor, targets: Tensor, shard: Shard) -> Tensor:
        real = len(shard.rows)
        with autocast(self.job.settings.precision, self.job.place.device):
            loss = self.job.workload.loss(outputs[:real], targets[:real])
        return loss * shard.weight if shard.weight != 1.0 else loss

    def _backward(self, outputs: tuple[Tensor, ...], samples: int) -> None:
        learning = [
            (each, passed) for each, passed in zip(outputs, self.stage.behind.tensors, strict=True) if passed.learns
        ]
        gradients = [passed.empty(samples, self.job.place.device) for _, passed in learning]
        self._receive_into(gradients, self.line.home(self.number + 1))
        if learning:
            torch.autograd.backward([each for each, _ in learning], gradients)

    def _receive(self, samples: int) -> tuple[Tensor, ...]:
        assert self.stage.before is not None
        passed = self.stage.before.tensors
        tensors = tuple(each.empty(samples, self.job.place.device) for each in passed)
        self._receive_into(tensors, self.line.home(self.number - 1))
        return tuple(tensor.requires_grad_(each.learns) for tensor, each in zip(tensors, passed, strict=True))

    def _receive_into(self, tensors: tuple[Tensor, ...] | list[Tensor], source: int) -> None:
        """Until the notice comes nothing is under way: the rank idles."""
        if tensors:
            assert self.wire is not None
            messages = [(each, source) for each in (self.notice, *tensors)]
            self.wire.receive(messages, on_first=lambda: self.job.clock.lap("idle"))
            self.job.clock.lap("receive")

    def _send(self, tensors: tuple[Tensor, ...] | list[Tensor], target: int) -> None:
        if tensors:
            assert self.wire is not None
            self.wire.send([(each.detach(), target) for each in (self.notice, *tensors)])
            self.job.clock.lap("send")
