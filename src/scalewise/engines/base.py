"""Engine interface, base class of engines that hold the whole model, and the eager training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from scalewise.core.training_options import Settings
from scalewise.data.dataset import Data
from scalewise.models.parameters import refuse_unreached, trainable
from scalewise.models.workload import Workload
from scalewise.parameter_server.client import Client
from scalewise.runtime.clock import Clock
from scalewise.runtime.execution import LossComputation
from scalewise.runtime.feed import Batch, Feed, Shard, shards_of
from scalewise.runtime.graceful_stop import GracefulStop
from scalewise.runtime.host_offload import Copied
from scalewise.runtime.optimizers import make_optimizer, make_scaler, sum_losses
from scalewise.strategies.plan import Footprint


@dataclass(frozen=True)
class Place:
    """Rank, world size and device of the process that an engine runs in."""

    rank: int
    world: int
    device: torch.device
    gpus: int = 1
    """Number of devices that this process drives; more than one only for torch.nn.DataParallel."""
    store: Store | None = None
    """Store through which workers and parameter servers connect; None in a run without servers."""
    timeout_seconds: float = 60.0
    stop: GracefulStop = field(default_factory=GracefulStop)
    """Request to end the run after the current step."""


@dataclass
class ExecutionReport:
    """What an engine reports about the execution options."""

    compile_seconds: float = 0.0
    """Seconds of compilation and of capturing CUDA graphs."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """Everything that an engine is built from."""

    workload: Workload
    data: Data
    settings: Settings
    place: Place
    clock: Clock
    scaler: torch.amp.GradScaler | None = None
    """Loss scaling of fp16."""
    report: ExecutionReport = field(default_factory=ExecutionReport)

    @classmethod
    def of(cls, workload: Workload, data: Data, settings: Settings, place: Place, clock: Clock) -> Job:
        """Create a job with the loss scaling that its precision needs."""
        return cls(workload, data, settings, place, clock, make_scaler(settings.precision, place.device))

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of a loss, scaled where the precision needs it."""
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the weights; with loss scaling, skip the update if a gradient is infinite or NaN."""
        if self.scaler:
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            optimizer.step()

    @property
    def optimizer(self) -> str:
        return self.settings.optimizer or self.workload.optimizer

    @property
    def learning_rate(self) -> float:
        return self.settings.learning_rate or self.workload.learning_rate


@dataclass(frozen=True)
class WholeModel:
    """A complete model and optimizer, independent of how they are distributed during training."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    """None if parameter servers update the weights."""


ReadCheckpoint = Callable[[nn.Module, torch.optim.Optimizer | None], None]
"""Function that loads a checkpoint into a complete model and optimizer (None on a rank without optimizer)."""


class Engine(Protocol):
    """Interface of an engine: built once per run, `start_epoch` sets the batches and `step` trains on the next."""

    execution: str

    @property
    def parameter_count(self) -> int:
        """Number of parameters of the complete model."""
        ...

    @property
    def feed(self) -> Feed | None:
        """Loader of this rank's samples; None on a rank that receives its inputs from other ranks."""
        ...

    @property
    def stream(self) -> int:
        """Rank whose random seed is used: this rank, or the first of a group of ranks that must draw equal numbers."""
        ...

    @property
    def copied(self) -> Copied | None:
        """Bytes copied between host memory and the device; None if the engine does not count them."""
        ...

    @property
    def server_client(self) -> Client | None:
        """Connection to the parameter servers, which write the checkpoints; None in a run without servers."""
        ...

    def as_run(self, footprint: Footprint) -> Footprint:
        """Return the footprint with the stages and micro-batches that the engine chose."""
        ...

    def start_epoch(self, batches: list[Tensor]) -> None:
        """Set the remaining global batches of this epoch, as sample indices."""
        ...

    def step(self) -> None:
        """Train on the next global batch without waiting for the device."""
        ...

    def losses(self) -> Tensor:
        """Return the mean loss of each global batch since the last call (computed before its update).

        Wait for the device.
        """
        ...

    def whole(self) -> WholeModel | None:
        """Return the complete model for a checkpoint on rank 0 and None elsewhere; every rank must call it.

        A model that is distributed over ranks is assembled in host memory.
        """
        ...

    def restore(self, read: ReadCheckpoint) -> None:
        """Resume from a checkpoint; every rank must call it with the same checkpoint before its first step."""
        ...

    def predictions(self, rows: list[Tensor]) -> Iterator[Batch]:
        """Yield (outputs, targets) of each tensor of sample indices on one rank, nothing on the others.

        The model is not trained. Every rank must iterate, because a distributed model needs all of its ranks.
        """
        ...

    def close(self) -> None:
        """Release connections; no step follows."""
        ...


class WholeModelEngine:
    """Base class of engines whose rank 0 holds the whole model, writes checkpoints and computes the accuracy."""

    job: Job
    model: nn.Module
    """Unwrapped module."""
    optimizer: torch.optim.Optimizer | None
    """None on a rank that does not update the weights."""
    feed: Feed | None

    @property
    def copied(self) -> Copied | None:
        return None

    @property
    def server_client(self) -> Client | None:
        return None

    def as_run(self, footprint: Footprint) -> Footprint:
        return footprint

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def stream(self) -> int:
        return self.job.place.rank

    def whole(self) -> WholeModel | None:
        return None if self.job.place.rank else WholeModel(self.model, self.optimizer)

    def restore(self, read: ReadCheckpoint) -> None:
        read(self.model, self.optimizer)

    def predictions(self, rows: list[Tensor]) -> Iterator[Batch]:
        if self.feed and self.job.place.rank == 0:
            yield from predictions_of(self.model, self.feed, rows)


@torch.no_grad()
def predictions_of(model: nn.Module, feed: Feed, rows: list[Tensor]) -> Iterator[Batch]:
    """Yield (outputs, targets) of each tensor of sample indices, in evaluation mode."""
    model.eval()
    for inputs, targets in feed.batches(rows):
        yield model(inputs), targets
    model.train()


class EagerEngine(WholeModelEngine):
    """Eager training loop that records the phases `load, forward, loss, backward, (reduce,) update`.

    `network` is the module to call: the model or a wrapper of it. The mean loss of every rank's share is weighted by
    its fraction of the global batch, so that gradients sum to those of one device even if shares are uneven or empty.
    """

    feed: Feed

    def __init__(
        self, job: Job, model: nn.Module, feed: Feed, network: nn.Module | None = None, *, averaged: bool = False
    ) -> None:
        """`averaged`: whether the wrapper divides gradients by the number of ranks, as DDP does."""
        self.job = job
        options = job.settings.execution_options
        self.execution = "compile" if options.compiles else "eager"
        self.model = model
        self.feed = feed
        self.network = network or model
        self.compute = LossComputation(
            self.network, job.workload.loss, options, job.place.device, loss_apart=network is not None
        )
        self.unprepared = options.compiles
        self.reduces = isinstance(network, DistributedDataParallel)
        self.scale = float(job.place.world) if averaged else 1.0
        self.optimizer: torch.optim.Optimizer | None = make_optimizer(
            job.optimizer, model.parameters(), job.learning_rate
        )
        self.pending: Iterator[tuple[Batch, float, bool]] = iter(())
        """Remaining micro-batches of the epoch: batch, weight of its loss, whether it is the last of its step."""
        self.step_losses: list[Tensor] = []
        self.exchanged = trainable(model) if self.reduces else []
        self.unreached: set[int] = set()
        """Indices into `exchanged` without a gradient in the current backward; DDP would wait for them forever."""
        for number, parameter in enumerate(self.exchanged):
            parameter.register_post_accumulate_grad_hook(partial(_mark_reached, self.unreached, number, job.clock))

    def start_epoch(self, batches: list[Tensor]) -> None:
        shards = [self._shards(rows) for rows in batches]
        if self.unprepared:
            self._compile({len(rows): parts for rows, parts in zip(batches, shards, strict=True)})
        feed = self.feed.batches([shard.rows for parts in shards for shard in parts])
        weights = [(shard.weight * self.scale, shard is parts[-1]) for parts in shards for shard in parts]
        self.pending = ((batch, weight, last) for batch, (weight, last) in zip(feed, weights, strict=True))

    def step(self) -> None:
        job, clock = self.job, self.job.clock
        clock.start()
        total: Tensor | None = None
        last = False
        while not last:
            (inputs, targets), weight, last = next(self.pending)
            clock.lap("load")
            with self._sync_if_last(last):
                loss = self.compute(inputs, targets, clock.lap)
            if weight != 1.0:
                loss = loss * weight
            job.backward(loss)
            if self.reduces and last:
                clock.lap("backward", noted=True)
                clock.lap("reduce")
            else:
                clock.lap("backward")
            detached = loss.detach().clone() if self.compute.overwrites else loss.detach()
            total = detached if total is None else total + detached
        self._update()
        self.step_losses.append(total)  # type: ignore[arg-type]

    def restore(self, read: ReadCheckpoint) -> None:
        if self.reduces and self.job.place.world > 2 and not self.unprepared:
            self._order_buckets()
        super().restore(read)

    def _order_buckets(self) -> None:
        """Run one backward pass whose gradients are dropped; the checkpoint then replaces all state that it changed.

        DDP orders its buckets by the first backward pass. The place of a gradient in a bucket decides in which order
        three or more ranks add it, so a resumed run must begin with the order that an uninterrupted run has by then.
        """
        self.job.clock.start()
        self.unreached.clear()
        rows = torch.arange(min(2, len(self.job.data)))
        inputs, targets = next(iter(self.feed.batches([rows])))
        loss: Tensor = self.job.workload.loss(self.network(inputs), targets)
        loss.backward()
        self.model.zero_grad()
        self.job.clock.forget()

    def losses(self) -> Tensor:
        losses = torch.stack(self.step_losses).float() / self.scale if self.step_losses else torch.empty(0)
        self.step_losses = []
        return sum_losses(losses, self.job.place.device)

    def close(self) -> None:
        """Do nothing: no connections are open."""

    def _shards(self, rows: Tensor) -> list[Shard]:
        """Return this rank's micro-batches of one global batch."""
        place = self.job.place
        return shards_of(rows, place.world, place.rank, self.job.settings.accumulate)

    def _compile(self, shards_of_size: dict[int, list[Shard]]) -> None:
        """Compile before the first step, for the micro-batches of each global batch size."""
        job = self.job
        self.unprepared = False
        self.compute.compile()
        rows = [shard.rows for parts in shards_of_size.values() for shard in parts]
        job.clock.start()
        with self._sync_if_last(False):
            self.compute.prepare(self.model, self.feed.batches(rows))
        job.clock.forget()
        job.report.compile_seconds += self.compute.compile_seconds
        job.report.notes += self.compute.notes

    def _update(self) -> None:
        assert self.optimizer is not None
        if self.unreached:
            refuse_unreached(self.model, [self.exchanged[number] for number in self.unreached])
        self.job.update(self.optimizer)
        self.optimizer.zero_grad()
        self.job.clock.lap("update")

    def _sync_if_last(self, last: bool) -> AbstractContextManager[None]:
        """Keep gradients on the rank except after the last micro-batch of a step, as DDP.no_sync() does."""
        self.unreached.update(range(len(self.exchanged)))
        if last or not isinstance(self.network, DistributedDataParallel):
            return nullcontext()
        return self.network.no_sync()


def _mark_reached(unreached: set[int], number: int, clock: Clock, _: Tensor) -> None:
    unreached.discard(number)
    clock.note()
