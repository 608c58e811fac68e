"""A copy of the model on every rank, wrapped in DDP."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scalewise.engines.engine import Job
from scalewise.errors import UserError
from scalewise.step.feed import Feed, kept_bytes, make_feed
from scalewise.step.left_out import is_left_out, make_model


def replicate(job: Job, bucket_MB: float | None) -> tuple[nn.Module, Feed, DistributedDataParallel]:
    """Gradients live in the buckets themselves, which saves a copy. `bucket_MB` None leaves the sizes to DDP."""
    if job.settings.execution == "graph":
        raise UserError("--execution graph is not possible: steps between ranks cannot be captured; use eager or auto")
    model = make_model(job.workload, job.data)
    feed = make_feed(job.data, job.settings.load, job.place.device, kept_bytes(model, job.optimizer))
    model = model.to(job.place.device)
    return model, feed, data_parallel(model, {} if bucket_MB is None else {"bucket_cap_mb": bucket_MB})


def data_parallel(model: nn.Module, options: dict[str, Any]) -> DistributedDataParallel:
    # The option had another name before torch 2.13.
    renamed = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
    options["forward_sync_buffers" if renamed else "broadcast_buffers"] = False
    left_out = [name for name, parameter in model.named_parameters() if is_left_out(parameter)]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, left_out)
    return DistributedDataParallel(model, gradient_as_bucket_view=True, **options)
