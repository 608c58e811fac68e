"""`scalewise.attach`: where the steps of somebody's own DDP script go, without changing it."""

from __future__ import annotations

import atexit
import sys
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console, RenderableType
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from scalewise.errors import UserError
from scalewise.phases import shared_out
from scalewise.results.attached import WARM_UP_STEPS, StepReport
from scalewise.results.printable import Printable
from scalewise.results.statistics import interval_of
from scalewise.step.clock import Times, make_clock
from scalewise.tracing import sockets


def attach(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, *, at_exit: bool = True) -> Attachment:
    """Watch a DDP model from now on. Print the result, or let rank 0 print it on stderr when the script ends.

    >>> scalewise.attach(ddp_model, optimizer)
    """
    if not isinstance(model, DistributedDataParallel):
        raise UserError(f"attach watches a DistributedDataParallel model, got {type(model).__name__}; wrap it first")
    attachment = Attachment(model, optimizer)
    if at_exit and dist.get_rank() == 0:
        atexit.register(attachment.print)
    return attachment


class Attachment(Printable):
    """Hooks on forward, on the gradients and around the optimizer; each costs a microsecond or less.

    optimizer ends | load | forward | loss | backward | reduce | update | optimizer ends
                           pre-hook  hook   output's    last      pre-hook  post-hook
                                            gradient    gradient

    A step begins with a forward that keeps what backward needs; others are an evaluation, and no part of any step.
    """

    def __init__(self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.rank, self.devices = dist.get_rank(), dist.get_world_size()
        self.gradient_bytes = sum(parameter.nbytes for parameter in parameters)
        self.times = Times(warm_up=WARM_UP_STEPS)
        self.clock = make_clock(parameters[0].device, self.times)
        self.started = self.under_way = self.in_backward = False
        self.steps = 0
        self.counted_from = 0
        self.counters: sockets.Counters | None = None
        self.hooks: list[Any] = [
            model.register_forward_pre_hook(self._forward_begins),
            model.register_forward_hook(self._forward_ends),
            optimizer.register_step_pre_hook(self._update_begins),
            optimizer.register_step_post_hook(self._update_ends),
            *(parameter.register_post_accumulate_grad_hook(self._gradient) for parameter in parameters),
        ]

    def detach(self) -> None:
        """Take all hooks away again."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        atexit.unregister(self.print)

    def report(self) -> StepReport:
        """What was seen so far; a step that is under way is not seen whole."""
        self._forget_step()
        self.clock.collect()
        sent = None
        if self.counters is not None and self.steps > self.counted_from:
            traffic = sockets.snapshot() - self.counters
            sent = round(traffic.sent_bytes / (self.steps - self.counted_from))
        step = interval_of(self.times.step_seconds)
        return StepReport(
            rank=self.rank,
            devices=self.devices,
            steps=self.steps,
            step_seconds=step,
            phases=shared_out(self.times.phases, step.median),
            gradient_bytes=self.gradient_bytes,
            sent_bytes_per_step=sent,
        )

    def print(self) -> None:
        """On stderr: the script's own output is its own."""
        Console(stderr=True).print(self)
        sys.stderr.flush()

    def to_json(self) -> dict[str, Any]:
        return self.report().to_json()

    def __rich__(self) -> RenderableType:
        return self.report().__rich__()

    def _forget_step(self) -> None:
        if self.started:
            self.clock.forget()
        self.started = self.under_way = self.in_backward = False

    def _forward_begins(self, *_: object) -> None:
        if not torch.is_grad_enabled():
            if not self.under_way:  # else the next step would have loaded for as long as the evaluation took
                self._forget_step()
            return
        if not self.started:
            self.clock.start()
            self.started = True
        # With gradient accumulation another forward follows the last backward.
        self.clock.lap("backward" if self.in_backward else "load")
        self.in_backward, self.under_way = False, True

    def _forward_ends(self, _model: object, _inputs: object, outputs: object) -> None:
        if not torch.is_grad_enabled() or not self.under_way:
            return
        self.clock.lap("forward")
        if isinstance(outputs, Tensor) and outputs.requires_grad:
            outputs.register_hook(self._backward_begins)

    def _backward_begins(self, _gradient: Tensor) -> None:
        if self.under_way:
            self.clock.lap("loss")
            self.in_backward = True

    def _gradient(self, _parameter: Tensor) -> None:
        if self.under_way:
            self.in_backward = True
            self.clock.note()

    def _update_begins(self, *_: object) -> None:
        if self.under_way:
            self.clock.lap("backward", noted=True)
            self.clock.lap("reduce")

    def _update_ends(self, *_: object) -> None:
        if not self.under_way:
            return
        self.clock.lap("update")
        self.in_backward = self.under_way = False
        self.steps += 1
        if self.steps == WARM_UP_STEPS and dist.get_backend() == "gloo" and sockets.available():
            self.counters, self.counted_from = sockets.snapshot(), self.steps
        self.clock.start()
