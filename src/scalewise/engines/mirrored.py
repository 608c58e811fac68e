"""The mirrored strategy on torch's DistributedDataParallel."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from scalewise.engines.eager import EagerEngine
from scalewise.engines.engine import Engine, Job
from scalewise.engines.overlap import register_noted
from scalewise.engines.replicas import replicate
from scalewise.strategies.mirrored import Mirrored


def build(strategy: Mirrored, job: Job) -> Engine:
    """DDP as it is: it averages over ranks, so each shard's loss carries the number of ranks as a factor."""
    model, feed, ddp = replicate(job, strategy.bucket_limit_MB)
    _reduce(ddp, strategy, job)
    return EagerEngine(job, model, feed, ddp, averaged=True)


def _reduce(ddp: DistributedDataParallel, strategy: Mirrored, job: Job) -> None:
    if strategy.compress == "fp16":
        ddp.register_comm_hook(dist.group.WORLD, fp16_compress_hook)
    elif strategy.compress == "powersgd":
        ddp.register_comm_hook(PowerSGDState(dist.group.WORLD, start_powerSGD_iter=2), powerSGD_hook)
    else:
        register_noted(ddp, job)
