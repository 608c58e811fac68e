"""Tasks that ranks import by name. Annotations must not be strings, because DDP inspects those of its hooks."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future

from scalewise.core.training_options import Settings
from scalewise.data.dataset import DataRequest
from scalewise.engines.base import Job, Place
from scalewise.engines.mirrored import replicate
from scalewise.launch.worker import Worker
from scalewise.models.resolve import resolve
from scalewise.runtime.clock import HostClock, Times


def ddp_buckets(worker: Worker, name: str, bucket_MB: float | None) -> list[int]:
    """Bytes of DDP's buckets in the second step, after DDP has reordered them."""
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
