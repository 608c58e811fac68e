"""A stage of torch.distributed.pipelining that says what it spends its time on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.distributed import P2POp
from torch.distributed.pipelining import PipelineStage

from scalewise.engines.stage import Stage
from scalewise.step.clock import Clock
from scalewise.step.staging import Staging


class TimedStage(PipelineStage):
    """What lies between computing is waiting: for a message, or for somebody to take one."""

    def __init__(
        self, clock: Clock, stage: Stage, number: int, count: int, device: torch.device, **options: Any
    ) -> None:
        super().__init__(stage, number, count, device, **options)
        self.clock = clock
        self.computes_on, self.stage = stage.device, stage
        self.samples = self.size = 0
        """Of this step, and of a micro-batch: what comes after them fills it up, and is not to be remembered."""

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        self.clock.lap("idle")
        self.stage.real = real = min(max(self.samples - fwd_chunk_id * self.size, 0), self.size)
        with nullcontext() if real else self.stage.remembering_nothing():
            outputs = super().forward_one_chunk(fwd_chunk_id, *arguments, **options)
        self.stage.real = None
        self.clock.lap("forward")
        return outputs

    def backward_one_chunk(self, bwd_chunk_id: int, loss: Any = None, *arguments: Any, **options: Any) -> None:
        self.clock.lap("idle")
        super().backward_one_chunk(bwd_chunk_id, loss, *arguments, **options)
        if loss is not None:
            loss.detach_()  # the schedule keeps all losses of a step, and each what was received to compute it
        self.clock.lap("backward")


class HostStage(TimedStage):
    """Between slices of a GPU everything travels through host memory, which gloo can read.

    Every micro-batch has buffers of its own: torch has all of a step's messages come and go before the next begins.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.staging = Staging(self.computes_on)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[P2POp]:
        return self._sent("forward", fwd_chunk_id, super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        return self._sent("backward", bwd_chunk_id, super().get_bwd_send_ops(bwd_chunk_id))

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[P2POp]:
        return self._awaited("forward", fwd_chunk_id, super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        return self._awaited("backward", bwd_chunk_id, super().get_bwd_recv_ops(bwd_chunk_id))

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> tuple[Tensor, ...]:
        received = super()._retrieve_recv_activations(fwd_chunk_id)
        return tuple(each for each in self._arrived("forward", fwd_chunk_id, received) if each is not None)

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> tuple[Tensor | None, ...]:
        return tuple(self._arrived("backward", bwd_chunk_id, super()._retrieve_recv_grads(bwd_chunk_id)))

    def _sent(self, way: str, chunk: int, operations: list[P2POp]) -> list[P2POp]:
        staged = [self.staging.filled(("out", way, chunk, at), each.tensor) for at, each in enumerate(operations)]
        return [_with(each, tensor) for each, tensor in zip(operations, staged, strict=True)]

    def _awaited(self, way: str, chunk: int, operations: list[P2POp]) -> list[P2POp]:
        staged = [self.staging.like(("in", way, chunk, at), each.tensor) for at, each in enumerate(operations)]
        return [_with(each, tensor) for each, tensor in zip(operations, staged, strict=True)]

    def _arrived(self, way: str, chunk: int, received: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
        """On the device: each from its buffer, in the order of the messages, of which none is for what is None."""
        messages = count()
        for each in received:
            key = ("in", way, chunk, next(messages)) if each is not None else None
            if each is None or key not in self.staging.buffers:
                yield each  # of a stage on this device
            else:
                staged = self.staging.like(key, each)
                yield staged.to(self.computes_on, copy=True).requires_grad_(each.requires_grad)


def _with(operation: P2POp, tensor: Tensor) -> P2POp:
    return P2POp(operation.op, tensor, operation.peer, operation.group, operation.tag)
