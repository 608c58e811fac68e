"""Engine of the layers strategy.

rank 0  load  forward  send  idle                  receive  backward  update
rank 1  idle  receive        forward  loss  backward  send  update
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from scalewise.engines.base import Engine, Job
from scalewise.engines.communication import StageRanks
from scalewise.engines.stages import StageEngine
from scalewise.runtime.feed import Batch, Shard, shards_of
from scalewise.runtime.optimizers import autocast
from scalewise.strategies.layers import Layers


def build(strategy: Layers, job: Job) -> Engine:
    return LayersEngine(strategy, job, StageRanks(tuple(range(job.place.world))))


class LayersEngine(StageEngine):
    """Engine with one stage per rank; the stages compute one after the other."""

    def __init__(self, strategy: Layers, job: Job, stage_ranks: StageRanks) -> None:
        share = -(-job.settings.batch // stage_ranks.parts)
        size = -(-share // job.settings.accumulate)
        stages = len(stage_ranks.ranks)
        super().__init__(
            job,
            stage_ranks,
            strategy.cut,
            lambda *_: size,
            lambda footprint: strategy.ranges(footprint, stages, size),
            strategy.balance,
        )
        self.stage_footprint = replace(self.stage_footprint, microbatches=job.settings.accumulate)
        [(self.number, self.stage)] = self.stages.items()
        self.notice = torch.zeros(1, dtype=torch.uint8, device=job.place.device)
        self.pending: Iterator[tuple[Shard, Batch | None, bool]] = iter(())

    def start_epoch(self, batches: list[Tensor]) -> None:
        stage_ranks, fixed = self.stage_ranks, self.fixed_batch
        shards = [
            shards_of(rows, stage_ranks.parts, stage_ranks.part, self.job.settings.accumulate) for rows in batches
        ]
        flat = [(shard, shard is parts[-1]) for parts in shards for shard in parts]
        rows = [self.padded(shard.rows, fixed) for shard, _ in flat]
        loaded = self.feed.batches(rows) if self.feed else [None] * len(flat)
        self.pending = ((shard, batch, last) for (shard, last), batch in zip(flat, loaded, strict=True))

    def step(self) -> None:
        self.job.clock.start()
        last = False
        total: Tensor | None = None
        while not last:
            shard, batch, last = next(self.pending)
            loss = self._forward_backward(shard, batch)
            if loss is not None:
                total = loss if total is None else total + loss
        self._reduce()
        self._update()
        if total is not None:
            self.step_losses.append(total)

    def _reduce(self) -> None:
        """Do nothing: with a single pipeline no gradients are exchanged."""

    def _forward_backward(self, shard: Shard, batch: Batch | None) -> Tensor | None:
        """Run forward and backward of one micro-batch; return its loss on the last stage, else None."""
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
            self._send(outputs, self.stage_ranks.rank_of(self.number + 1))
            self._backward(outputs, samples)
        lap("backward")
        if not self.first:
            gradients = [
                torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
                for tensor in inputs
                if tensor.requires_grad
            ]
            self._send(gradients, self.stage_ranks.rank_of(self.number - 1))
        return loss.detach() if loss is not None else None

    def _loss(self, outputs: Tensor, targets: Tensor, shard: Shard) -> Tensor:
        real = len(shard.rows)
        with autocast(self.job.settings.precision, self.job.place.device):
            loss = self.job.workload.loss(outputs[:real], targets[:real])
        return loss * shard.weight if shard.weight != 1.0 else loss

    def _backward(self, outputs: tuple[Tensor, ...], samples: int) -> None:
        differentiable = [
            (output, expected)
            for output, expected in zip(outputs, self.stage.behind.tensors, strict=True)
            if expected.requires_grad
        ]
        gradients = [expected.empty(samples, self.job.place.device) for _, expected in differentiable]
        self._receive_into(gradients, self.stage_ranks.rank_of(self.number + 1))
        if differentiable:
            torch.autograd.backward([output for output, _ in differentiable], gradients)

    def _receive(self, samples: int) -> tuple[Tensor, ...]:
        assert self.stage.before is not None
        expected = self.stage.before.tensors
        tensors = tuple(spec.empty(samples, self.job.place.device) for spec in expected)
        self._receive_into(tensors, self.stage_ranks.rank_of(self.number - 1))
        return tuple(tensor.requires_grad_(spec.requires_grad) for tensor, spec in zip(tensors, expected, strict=True))

    def _receive_into(self, tensors: tuple[Tensor, ...] | list[Tensor], source: int) -> None:
        """Receive tensors; the time until the one-byte notice arrives is recorded as idle, the rest as receive."""
        if tensors:
            assert self.wire is not None
            messages = [(tensor, source) for tensor in (self.notice, *tensors)]
            self.wire.receive(messages, on_first=lambda: self.job.clock.lap("idle"))
            self.job.clock.lap("receive")

    def _send(self, tensors: tuple[Tensor, ...] | list[Tensor], target: int) -> None:
        if tensors:
            assert self.wire is not None
            self.wire.send([(tensor.detach(), target) for tensor in (self.notice, *tensors)])
            self.job.clock.lap("send")
