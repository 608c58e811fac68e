"""`scalewise.attach`: time the steps of the user's own DDP script."""

from __future__ import annotations

import atexit
import sys
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from scalewise.core.errors import UserError
from scalewise.core.statistics import Interval, interval_of
from scalewise.core.timeline import shared_out
from scalewise.core.units import EscapingConsole, Printable, bytes_text
from scalewise.formats.train_result import phase_table
from scalewise.runtime import byte_counters
from scalewise.runtime.clock import Times, make_clock

WARM_UP_STEPS = 5


@dataclass(frozen=True)
class StepReport(Printable):
    """Step time and phases of a watched DDP model on this rank."""

    rank: int
    devices: int
    steps: int
    step_seconds: Interval
    phases: dict[str, float]
    gradient_bytes: int
    sent_bytes_per_step: int | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __rich__(self) -> RenderableType:
        if self.steps == 0:
            return Text("scalewise: no complete training step yet")
        if not self.phases:
            count = f"{self.steps} training step{'s' * (self.steps > 1)}"
            return Text(f"scalewise: {count} so far, none timed yet: the first {WARM_UP_STEPS} are warm-up")
        waiting = self.phases.get("reduce", 0.0) / sum(self.phases.values())
        sent = "" if self.sent_bytes_per_step is None else f", {bytes_text(self.sent_bytes_per_step)} sent per step"
        return Group(
            Text(
                f"rank {self.rank} of {self.devices}: {self.steps} steps, "
                f"{self.step_seconds.text} per step, "
                f"{bytes_text(self.gradient_bytes)} of gradients{sent}"
            ),
            Text(),
            phase_table(self.phases),
            Text(),
            Text(f"{waiting:.0%} of a step waits for gradients of other devices (not overlapped with backward)"),
        )


def attach(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, *, at_exit: bool = True) -> Attachment:
    """Time the training steps of a DDP model from now on.

    Args:
        model: The model after it was wrapped in DistributedDataParallel.
        optimizer: Its optimizer.
        at_exit: Whether rank 0 prints the result on stderr when the script ends.

    Returns:
        An `Attachment`; print it at any time to see the result so far.

    Examples:
        >>> attachment = scalewise.attach(ddp_model, optimizer)  # doctest: +SKIP
    """
    if not isinstance(model, DistributedDataParallel):
        raise UserError(
            f"attach needs a DistributedDataParallel model, got {type(model).__name__}; wrap the model in "
            "DistributedDataParallel first"
        )
    attachment = Attachment(model, optimizer)
    if at_exit and dist.get_rank() == 0:
        atexit.register(attachment.print)
    return attachment


class Attachment(Printable):
    """Hooks on forward, on the gradients and around the optimizer step; each costs at most about a microsecond.

    optimizer ends | load | forward | loss | backward | reduce | update | optimizer ends
                           pre-hook  hook   output's    last      pre-hook  post-hook
                                            gradient    gradient

    A step starts with a forward pass that records gradients. Forward passes without gradients are an evaluation and
    belong to no step.
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
        self.counters: byte_counters.Counters | None = None
        self.hooks: list[Any] = [
            model.register_forward_pre_hook(self._forward_begins),
            model.register_forward_hook(self._forward_ends),
            optimizer.register_step_pre_hook(self._update_begins),
            optimizer.register_step_post_hook(self._update_ends),
            *(parameter.register_post_accumulate_grad_hook(self._gradient) for parameter in parameters),
        ]

    def detach(self) -> None:
        """Remove all hooks."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        atexit.unregister(self.print)

    def report(self) -> StepReport:
        """Return the figures of all complete steps so far. A step in progress is not timed."""
        self._forget_step()
        self.clock.collect()
        sent = None
        if self.counters is not None and self.steps > self.counted_from:
            traffic = byte_counters.snapshot() - self.counters
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
        """Print the report on stderr, so that it does not mix with the script's own output."""
        EscapingConsole(stderr=True).print(self)
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
            if not self.under_way:  # otherwise the evaluation would count as the load phase of the next step
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
        if self.steps == WARM_UP_STEPS and dist.get_backend() == "gloo" and byte_counters.available():
            self.counters, self.counted_from = byte_counters.snapshot(), self.steps
        self.clock.start()
