"""Central storage for real: weights, gradients and optimizer in host memory, lent to the device layer by layer.

every rank   load  (forward pull ...)  loss  (pull backward push ...)  idle  update  idle
                                                                      all here     all updated
"""

from __future__ import annotations

import weakref
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewise.engines.eager import EagerEngine
from scalewise.engines.engine import Engine, Job
from scalewise.errors import UserError
from scalewise.step.copies import Copied, make_copier
from scalewise.step.feed import Feed, make_feed
from scalewise.step.flat import one_kind, trainable, views_of
from scalewise.step.host_memory import pin, shared_zeros
from scalewise.step.host_update import HostUpdate
from scalewise.step.left_out import is_left_out, make_model, refuse_unreached
from scalewise.step.loans import Loans
from scalewise.step.optimizers import make_optimizer, refuse_unless_elementwise
from scalewise.step.precision import autocast
from scalewise.strategies.central_storage import CentralStorage


def build(strategy: CentralStorage, job: Job) -> Engine:
    if job.settings.execution == "graph":
        raise UserError(
            "--execution graph is not possible: central-storage updates on the host after every step; use eager or auto"
        )
    refuse_unless_elementwise(job.optimizer, "slices of central storage")
    model = make_model(job.workload, job.data)
    # Of weights on loan, one parameter with its gradient and those fetched ahead, at least.
    largest = max((parameter.nbytes for parameter in trainable(model)), default=0)
    feed = make_feed(job.data, job.settings.load, job.place.device, (2 + strategy.prefetch) * largest)
    return CentralStorageEngine(job, model, feed, strategy.prefetch)


class CentralStorageEngine(EagerEngine):
    """The model's parameters are views of host memory; buffers and frozen parameters stay on the device."""

    def __init__(self, job: Job, model: nn.Module, feed: Feed, ahead: int) -> None:
        place = job.place
        self.parameters = trainable(model)
        dtype = one_kind(self.parameters)
        elements = sum(parameter.numel() for parameter in self.parameters)
        self.weights = shared_zeros((elements,), dtype, place.rank, place.world)
        self.gradients = shared_zeros((place.world, elements), dtype, place.rank, place.world)
        for parameter, view in zip(self.parameters, views_of(self.weights, self.parameters), strict=True):
            if place.rank == 0:
                view.copy_(parameter.detach())
            parameter.data = view
        _move_the_rest(model, place.device)
        super().__init__(job, model, feed)
        make = partial(make_optimizer, job.optimizer, learning_rate=job.learning_rate)
        self.update = HostUpdate(make, self.parameters, self.weights, self.gradients, place.rank, place.world)
        if place.rank:
            self.optimizer = None
        else:
            self.update.show_in(self.optimizer)  # type: ignore[arg-type]
        self.row = self.gradients[place.rank]
        self.own = views_of(self.row, self.parameters)
        if place.device.type == "cuda":
            pin(self.weights)
            pin(self.row)
        self.copier = make_copier(place.device)
        self.loans = Loans(model, self.weights, place.device, self.copier, ahead)
        self.given: set[int] = set()
        engine = weakref.proxy(self)  # hooks that held it would keep all this memory from being freed
        for number, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(partial(_give, engine, number))

    @property
    def copied(self) -> Copied:
        return self.loans.copied

    def start_epoch(self, batches: list[Tensor]) -> None:
        """A checkpoint may have been loaded, by every rank into the same memory."""
        super().start_epoch(batches)
        if self.optimizer:
            self.update.take_from(self.optimizer)
        if self.job.place.world > 1:
            dist.barrier()
        self.update.begin()

    def step(self) -> None:
        job, clock = self.job, self.job.clock
        clock.start()
        total: Tensor | None = None
        last = False
        self.given.clear()
        with self.loans.open():
            while not last:
                (inputs, targets), weight, last = next(self.pending)
                clock.lap("load")
                self.loans.begin("forward", clock)
                with autocast(job.settings.precision, job.place.device):
                    outputs = self.model(inputs)
                    clock.lap("forward")
                    self.loans.stage = "loss"
                    loss = job.workload.loss(outputs, targets)
                if weight != 1.0:
                    loss = loss * weight
                clock.lap("loss")
                self.loans.begin("backward", clock)
                self.loans.backward(loss)
                clock.lap("backward")
                total = loss.detach() if total is None else total + loss.detach()
        self._update()
        self.copied.steps += 1
        self.seen.append(total)  # type: ignore[arg-type]

    def give(self, number: int, gradient: Tensor) -> None:
        """A gradient is complete: the host takes it, or adds it to that of the parts before."""
        self.job.clock.lap("backward")
        adds = number in self.given
        self.copier.give(gradient, self.own[number], add=adds)
        self.given.add(number)
        self.copied.given_bytes += gradient.nbytes
        self.copied.fetched_bytes += gradient.nbytes * adds
        self.job.clock.lap("push")

    def _update(self) -> None:
        lap = self.job.clock.lap
        if len(self.given) < len(self.own):
            refuse_unreached(self.model, [self.parameters[number] for number in set(range(len(self.own))) - self.given])
        self.copier.given()
        lap("push")
        self.copier.settle()
        self._meet()
        self.update.step()
        lap("update")
        self._meet()

    def _meet(self) -> None:
        if self.job.place.world > 1:
            dist.barrier()
            self.job.clock.lap("idle")


def _give(engine: CentralStorageEngine, number: int, parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    engine.give(number, parameter.grad)
    parameter.grad = None


def _move_the_rest(model: nn.Module, device: torch.device) -> None:
    for parameter in model.parameters():
        if not parameter.requires_grad or is_left_out(parameter):
            parameter.data = parameter.data.to(device)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))
