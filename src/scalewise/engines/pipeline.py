"""Engine of the pipeline strategy, on torch.distributed.pipelining.

rank 0  load  forward  forward  idle     backward  idle     backward  update
rank 1  idle           forward  loss  backward  forward  loss  backward  update
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from inspect import signature
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import P2POp
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from scalewise.core.errors import UserError
from scalewise.engines.base import Engine, Job
from scalewise.engines.communication import StageRanks, Staging
from scalewise.engines.stages import Stage, StageEngine
from scalewise.hardware.collectives import Backend
from scalewise.models.chain import PassedTensor
from scalewise.models.footprint import norms_batches
from scalewise.runtime.clock import Clock
from scalewise.runtime.feed import Batch, Shard, shards_of
from scalewise.runtime.optimizers import autocast
from scalewise.strategies.microbatches import Filling, given_microbatches, without_costs
from scalewise.strategies.pipeline import Pipeline
from scalewise.strategies.plan import Footprint


class TimedStage(PipelineStage):
    """Pipeline stage that records its phases; time between computations is idle, spent waiting for messages."""

    def __init__(
        self, clock: Clock, stage: Stage, number: int, count: int, device: torch.device, **options: Any
    ) -> None:
        super().__init__(stage, number, count, device, **options)
        self.clock = clock
        self.computes_on, self.stage = stage.device, stage
        self.samples = self.size = 0
        """Number of samples in this step, and rows of a micro-batch. Rows beyond the samples are padding."""

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        self.clock.lap("idle")
        self.stage.sample_count = samples = min(max(self.samples - fwd_chunk_id * self.size, 0), self.size)
        with nullcontext() if samples else self.stage.unchanged_buffers():
            outputs = super().forward_one_chunk(fwd_chunk_id, *arguments, **options)
        self.stage.sample_count = None
        self.clock.lap("forward")
        return outputs

    def backward_one_chunk(self, bwd_chunk_id: int, loss: Any = None, *arguments: Any, **options: Any) -> None:
        self.clock.lap("idle")
        super().backward_one_chunk(bwd_chunk_id, loss, *arguments, **options)
        if loss is not None:
            loss.detach_()  # the schedule keeps all losses of a step, whose graphs hold the received activations
        self.clock.lap("backward")


class HostStage(TimedStage):
    """Pipeline stage on a slice of a GPU, which sends and receives through host memory, where gloo can read.

    Every micro-batch has its own buffers, because torch may have all messages of a step under way at once.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.staging = Staging(self.computes_on)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[P2POp]:
        return self._send_from_host("forward", fwd_chunk_id, super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        return self._send_from_host("backward", bwd_chunk_id, super().get_bwd_send_ops(bwd_chunk_id))

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[P2POp]:
        return self._receive_on_host("forward", fwd_chunk_id, super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        return self._receive_on_host("backward", bwd_chunk_id, super().get_bwd_recv_ops(bwd_chunk_id))

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> tuple[Tensor, ...]:
        received = super()._retrieve_recv_activations(fwd_chunk_id)
        return tuple(tensor for tensor in self._to_device("forward", fwd_chunk_id, received) if tensor is not None)

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> tuple[Tensor | None, ...]:
        return tuple(self._to_device("backward", bwd_chunk_id, super()._retrieve_recv_grads(bwd_chunk_id)))

    def _send_from_host(self, direction: str, chunk: int, operations: list[P2POp]) -> list[P2POp]:
        staged = [
            self.staging.filled(("out", direction, chunk, index), operation.tensor)
            for index, operation in enumerate(operations)
        ]
        return [_with_tensor(operation, tensor) for operation, tensor in zip(operations, staged, strict=True)]

    def _receive_on_host(self, direction: str, chunk: int, operations: list[P2POp]) -> list[P2POp]:
        staged = [
            self.staging.like(("in", direction, chunk, index), operation.tensor)
            for index, operation in enumerate(operations)
        ]
        return [_with_tensor(operation, tensor) for operation, tensor in zip(operations, staged, strict=True)]

    def _to_device(self, direction: str, chunk: int, received: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
        """Copy received tensors from their host buffers to the device; entries without a message stay None."""
        messages = count()
        for tensor in received:
            key = ("in", direction, chunk, next(messages)) if tensor is not None else None
            if tensor is None or key not in self.staging.buffers:
                yield tensor  # sent by a stage on this device
            else:
                staged = self.staging.like(key, tensor)
                yield staged.to(self.computes_on, copy=True).requires_grad_(tensor.requires_grad)


def _with_tensor(operation: P2POp, tensor: Tensor) -> P2POp:
    return P2POp(operation.op, tensor, operation.peer, operation.group, operation.tag)


class PipelineEngine(StageEngine):
    """Engine with a fixed number of equal micro-batches per step; short batches are padded with zero-weight samples."""

    def __init__(self, strategy: Pipeline, job: Job, stage_ranks: StageRanks) -> None:
        if job.settings.accumulate > 1:
            raise UserError(
                f"--accumulate {job.settings.accumulate} is not possible, because a pipeline already computes in "
                f"micro-batches; use its option microbatches={job.settings.accumulate} instead"
            )
        self.count = self.size = 0
        self.norms_batches = False
        backend: Backend = "nccl" if dist.get_backend(stage_ranks.group) == "nccl" else "gloo"
        share = -(-job.settings.batch // stage_ranks.parts)

        def filling(footprint: Footprint) -> Filling:
            return strategy.filling(footprint, len(stage_ranks.ranks), share, backend)

        def samples_for(model: nn.Module, footprint: Footprint) -> int:
            norms = self.norms_batches = norms_batches(model)
            if footprint.sections:
                chosen = filling(replace(footprint, norms_batches=norms))
                self.count, self.size = chosen.number, chosen.size
            else:  # the model is exported for a fixed micro-batch, and its costs are known only afterwards
                count, devices = strategy.microbatches, len(stage_ranks.ranks)
                self.count, self.size = (
                    given_microbatches(count, share, devices, strategy.schedule)
                    if count
                    else without_costs(share, devices, strategy.schedule, norms_batches=norms)
                )
            return self.size

        super().__init__(
            job,
            stage_ranks,
            strategy.cut,
            samples_for,
            lambda footprint: (
                filling(replace(footprint, microbatches=self.count, norms_batches=self.norms_batches)).ranges
            ),
            strategy.balance,
            strategy.stages_each(len(stage_ranks.ranks)),
            strategy.checkpoint,
        )
        self.stage_footprint = replace(self.stage_footprint, microbatches=self.count)
        self.loss = WeightedLoss(job, self.size)
        self.timed = stages = [self._torch_stage(number) for number in self.stages]
        options: dict[str, Any] = {"loss_fn": self.loss, "scale_grads": False}
        # torch logs its whole schedule when a step fails; the error is raised and reported anyway.
        logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)
        self.schedule: Any
        if len(stages) > 1:
            self.schedule = ScheduleInterleaved1F1B(stages, self.count, **options)  # type: ignore[arg-type]
        else:
            kind = ScheduleGPipe if strategy.schedule == "gpipe" else Schedule1F1B
            self.schedule = kind(stages[0], self.count, **options)
        # Older versions of torch always return the outputs.
        self.step_options = (
            {"return_outputs": False} if "return_outputs" in signature(self.schedule.step).parameters else {}
        )
        self.pending: Iterator[tuple[Shard, Batch | None]] = iter(())

    def start_epoch(self, batches: list[Tensor]) -> None:
        shards = [shards_of(rows, self.stage_ranks.parts, self.stage_ranks.part)[0] for rows in batches]
        rows = [self.padded(shard.rows, self.count * self.size) for shard in shards]
        batches_or_none = self.feed.batches(rows) if self.feed else [None] * len(rows)
        self.pending = zip(shards, batches_or_none, strict=True)

    def step(self) -> None:
        self.job.clock.start()
        shard, batch = next(self.pending)
        if batch:
            self.job.clock.lap("load")
        self.loss.begin(shard)
        for stage in self.timed:
            stage.samples, stage.size = len(shard.rows) if shard.weight else 0, self.size
        inputs = (batch[0],) if self.first and batch else ()
        self.schedule.step(*inputs, target=batch[1] if self.last and batch else None, **self.step_options)
        self._reduce()
        self._update()
        if self.last:
            self.step_losses.append(self.loss.total)

    def _reduce(self) -> None:
        """Do nothing: with a single pipeline no gradients are exchanged."""

    def _torch_stage(self, number: int) -> TimedStage:
        """Build torch's stage with known shapes, which torch would otherwise find by sending a micro-batch through."""
        stage, device = self.stages[number], self.job.place.device
        example, _ = self.job.data.example()
        data = PassedTensor(tuple(example.shape), example.dtype, requires_grad=False)
        inputs = stage.before.tensors if stage.before else [data]
        through_host = device.type == "cuda" and dist.get_backend(self.stage_ranks.group) == "gloo"
        kind = HostStage if through_host else TimedStage
        return kind(
            self.job.clock,
            stage,
            number,
            len(self.ranges),
            torch.device("cpu") if through_host else device,
            input_args=_meta_tensors(inputs, self.size),
            output_args=_meta_tensors(stage.behind.tensors, self.size),
            group=self.stage_ranks.group,
        )


class WeightedLoss:
    """Loss function that weights micro-batches by their share of the global batch and sums the losses of a step."""

    def __init__(self, job: Job, size: int) -> None:
        self.job, self.size = job, size
        self.shard = Shard(torch.empty(0), 0.0)
        self.number = 0
        self.total = torch.zeros((), device=job.place.device)

    def begin(self, shard: Shard) -> None:
        self.shard, self.number = shard, 0
        self.total = torch.zeros((), device=self.job.place.device)

    def __call__(self, stage_outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        [outputs] = stage_outputs
        whole = len(self.shard.rows)
        samples = min(max(whole - self.number * self.size, 0), self.size)
        self.number += 1
        with autocast(self.job.settings.precision, self.job.place.device):
            loss = self.job.workload.loss(outputs[: samples or 1], targets[: samples or 1])
        loss = loss * (self.shard.weight * samples / whole)
        self.total = self.total + loss.detach()
        self.job.clock.lap("loss")
        return loss


def _meta_tensors(specs: Sequence[PassedTensor], samples: int) -> tuple[Tensor, ...]:
    return tuple(spec.empty(samples, "meta").requires_grad_(spec.requires_grad) for spec in specs)


def build(strategy: Pipeline, job: Job) -> Engine:
    return PipelineEngine(strategy, job, StageRanks(tuple(range(job.place.world))))
