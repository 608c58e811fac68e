"""Engine of the mirrored strategy: DDP, with optional timing of its gradient reduction."""
# Without `from __future__ import annotations`: DDP compares the annotations of a communication hook with classes.

from collections.abc import Callable
from inspect import signature
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from scalewise.engines.base import EagerEngine, Engine, Job
from scalewise.models.parameters import is_left_out, make_model
from scalewise.runtime.clock import HostClock
from scalewise.runtime.execution import place_model
from scalewise.runtime.feed import Feed, kept_bytes, make_feed
from scalewise.strategies.mirrored import Mirrored

Hook = Callable[[Any, dist.GradBucket], Future[Tensor]]  # type: ignore[name-defined]


def register_timed_hook(ddp: DistributedDataParallel, job: Job, state: Any = None, hook: Hook = allreduce_hook) -> None:
    """Register a DDP communication hook; for a trace on CPU ranks, record when each bucket was ready and reduced.

    DDP's default reduction stays in place unless times are recorded.
    """
    clock = job.clock
    if job.settings.traced and isinstance(clock, HostClock):
        beside = clock.times.beside

        def timed(state: Any, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
            started = perf_counter()

            def done(reduced: Future[Tensor]) -> Tensor:
                beside.append((started, perf_counter()))
                return reduced.value()

            return hook(state, bucket).then(done)

        ddp.register_comm_hook(state, timed)
    elif hook is not allreduce_hook:
        ddp.register_comm_hook(state, hook)


def replicate(job: Job, bucket_MB: float | None) -> tuple[nn.Module, Feed, DistributedDataParallel]:
    """Return the model, its data feed and its DDP wrapper. `bucket_MB` None keeps DDP's default bucket sizes."""
    model = make_model(job.workload, job.data)
    feed = make_feed(job.data, job.settings.load, job.place.device, kept_bytes(model, job.optimizer))
    rows = torch.arange(1)
    job.report.notes += place_model(
        model, job.settings.execution_options, job.place.device, lambda: next(iter(feed.batches([rows])))[0]
    )
    return model, feed, data_parallel(model, {} if bucket_MB is None else {"bucket_cap_mb": bucket_MB})


def data_parallel(model: nn.Module, options: dict[str, Any]) -> DistributedDataParallel:
    """Wrap the model in DDP, ignoring parameters that never get a gradient; gradients are views of the buckets."""
    # torch 2.13 renamed this option.
    has_new_name = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
    options["forward_sync_buffers" if has_new_name else "broadcast_buffers"] = False
    left_out = [name for name, parameter in model.named_parameters() if is_left_out(parameter)]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, left_out)
    return DistributedDataParallel(model, gradient_as_bucket_view=True, **options)


def build(strategy: Mirrored, job: Job) -> Engine:
    """Build the engine. DDP averages over ranks, so every share's loss is multiplied by the number of ranks."""
    model, feed, ddp = replicate(job, strategy.bucket_limit_MB)
    _register_compression(ddp, strategy, job)
    return EagerEngine(job, model, feed, ddp, averaged=True)


def _register_compression(ddp: DistributedDataParallel, strategy: Mirrored, job: Job) -> None:
    if strategy.compress == "fp16":
        ddp.register_comm_hook(dist.group.WORLD, fp16_compress_hook)
    elif strategy.compress == "powersgd":
        ddp.register_comm_hook(PowerSGDState(dist.group.WORLD, start_powerSGD_iter=2), powerSGD_hook)
    else:
        register_timed_hook(ddp, job)
