"""A stage of torch.distributed.pipelining that says what it spends its time on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import P2POp
from torch.distributed.pipelining import PipelineStage

from scalewise.engines.stage import Stage
from scalewise.step.clock import Clock


class TimedStage(PipelineStage):
    """What lies between computing is waiting: for a message, or for somebody to take one."""

    def __init__(
        self, clock: Clock, stage: Stage, number: int, count: int, device: torch.device, **options: Any
    ) -> None:
        super().__init__(stage, number, count, device, **options)
        self.clock = clock
        self.computes_on = stage.device

    def forward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        self.clock.lap("idle")
        outputs = super().forward_one_chunk(*arguments, **options)
        self.clock.lap("forward")
        return outputs

    def backward_one_chunk(self, bwd_chunk_id: int, loss: Any = None, *arguments: Any, **options: Any) -> None:
        self.clock.lap("idle")
        super().backward_one_chunk(bwd_chunk_id, loss, *arguments, **options)
        if loss is not None:
            loss.detach_()  # the schedule keeps all losses of a step, and each what was received to compute it
        self.clock.lap("backward")


class HostStage(TimedStage):
    """Between slices of a GPU everything travels through host memory, which gloo can read."""

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[P2POp]:
        return [_on_host(each) for each in super().get_fwd_send_ops(fwd_chunk_id)]

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        return [_on_host(each) for each in super().get_bwd_send_ops(bwd_chunk_id)]

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> tuple[Tensor, ...]:
        received: tuple[Tensor, ...] = super()._retrieve_recv_activations(fwd_chunk_id)
        return tuple(each.detach().to(self.computes_on).requires_grad_(each.requires_grad) for each in received)

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> tuple[Tensor | None, ...]:
        received: tuple[Tensor | None, ...] = super()._retrieve_recv_grads(bwd_chunk_id)
        return tuple(each if each is None else each.to(self.computes_on) for each in received)


def _on_host(operation: P2POp) -> P2POp:
    return P2POp(operation.op, operation.tensor.cpu(), operation.peer, operation.group, operation.tag)
