"""Tasks for the tests of strategies: ranks import them by name. (DDP reads a hook's annotations: no strings here.)"""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future

from scalewise.data.data import DataRequest
from scalewise.engines.engine import Job, Place
from scalewise.engines.replicas import replicate
from scalewise.session.worker import Worker
from scalewise.step.clock import HostClock, Times
from scalewise.step.settings import Settings
from scalewise.workloads.resolve import resolve


def ddp_buckets(worker: Worker, name: str, bucket_MB: float | None) -> list[int]:
    """Bytes of DDP's buckets once it has seen gradients become ready."""
    workload = resolve(name)
    data = workload.data(DataRequest(samples=2))
    place = Place(worker.rank, worker.world, worker.device)
    _, feed, ddp = replicate(Job(workload, data, Settings(2), place, HostClock(Times())), bucket_MB)
    sizes: list[int] = []

    def hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[torch.Tensor]:  # type: ignore[name-defined]
        sizes.append(bucket.buffer().nbytes)
        return allreduce_hook(group, bucket)

    ddp.register_comm_hook(dist.group.WORLD, hook)
    for _ in range(2):
        sizes.clear()
        [(inputs, targets)] = feed.batches([torch.arange(2)])
        workload.loss(ddp(inputs), targets).backward()
    return sizes
