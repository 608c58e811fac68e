"""Model parallelism inside groups of devices, data parallelism between them."""

from __future__ import annotations

from scalewise.engines.engine import Engine, Job
from scalewise.engines.tensor import build_groups
from scalewise.strategies.hybrid import Hybrid
from scalewise.strategies.tensor import Tensor


def build(strategy: Hybrid, job: Job) -> Engine:
    strategy.check_devices(job.place.world)
    return build_groups(Tensor(), job, strategy.inside)
