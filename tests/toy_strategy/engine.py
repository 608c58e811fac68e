"""Engine of the flat strategy: the plain training loop, with all-reduces between backward and update."""

from __future__ import annotations

import torch
import torch.distributed as dist

from scalewise.engines.base import EagerEngine, Engine, Job
from scalewise.runtime.feed import kept_bytes, make_feed
from tests.toy_strategy.strategy import Flat


def build(strategy: Flat, job: Job) -> Engine:
    model = job.workload.model()
    feed = make_feed(job.data, job.settings.load, job.place.device, kept_bytes(model, job.optimizer))
    engine = _FlatEngine(job, model.to(job.place.device), feed)
    engine.parts = strategy.parts
    return engine


class _FlatEngine(EagerEngine):
    parts: int

    def _update(self) -> None:
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        if self.job.place.world > 1:
            message = torch.cat([gradient.flatten() for gradient in gradients])
            for part in message.tensor_split(self.parts):
                dist.all_reduce(part)
            summed = message.split([gradient.numel() for gradient in gradients])
            for gradient, values in zip(gradients, summed, strict=True):
                gradient.copy_(values.view_as(gradient))
            self.job.clock.lap("reduce")
        super()._update()
