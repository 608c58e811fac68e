"""The ring all-reduce inside torch's DistributedDataParallel, as a communication hook."""

from __future__ import annotations

from scalewise.engines.eager import EagerEngine
from scalewise.engines.engine import Engine, Job
from scalewise.engines.overlap import register_noted
from scalewise.engines.replicas import replicate
from scalewise.step.ring import RingAllReduce, ring_hook
from scalewise.strategies.buckets import MIB
from scalewise.strategies.ring import Ring


def build(strategy: Ring, job: Job) -> Engine:
    """Our hook sums and does not average, which is what weighted shards want."""
    model, feed, ddp = replicate(job, strategy.bucket_MB)
    register_noted(ddp, job, RingAllReduce(piece_bytes=int(strategy.piece_MB * MIB)), ring_hook)
    return EagerEngine(job, model, feed, ddp)
