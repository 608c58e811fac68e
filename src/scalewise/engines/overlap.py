"""When gradients are reduced beside backward: noted for a trace, by a hook around DDP's reduction or our own."""
# Annotations are not postponed here: DDP compares those of a communication hook with the classes themselves.

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from scalewise.engines.engine import Job
from scalewise.step.clock import HostClock

Hook = Callable[[Any, dist.GradBucket], Future[Tensor]]  # type: ignore[name-defined]


def register_noted(ddp: DistributedDataParallel, job: Job, state: Any = None, hook: Hook = allreduce_hook) -> None:
    """Register the hook; for a trace on CPU ranks, with a note of when each bucket was ready and when reduced.

    DDP's own reduction is left alone unless there is something to note.
    """
    clock = job.clock
    if job.settings.traced and isinstance(clock, HostClock):
        beside = clock.times.beside

        def noted(state: Any, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
            started = perf_counter()

            def done(reduced: Future[Tensor]) -> Tensor:
                beside.append((started, perf_counter()))
                return reduced.value()

            return hook(state, bucket).then(done)

        ddp.register_comm_hook(state, noted)
    elif hook is not allreduce_hook:
        ddp.register_comm_hook(state, hook)
