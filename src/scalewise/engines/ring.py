"""The ring all-reduce inside torch's DistributedDataParallel, as a communication hook."""

from __future__ import annotations

from scalewise.engines.eager import EagerEngine
from scalewise.engines.engine import Job
from scalewise.engines.overlap import register_noted
from scalewise.engines.replicas import replicate
from scalewise.step.ring import RingAllReduce, ring_hook
from scalewise.strategies.buckets import MIB
from scalewise.strategies.ring import Ring


class RingEngine(EagerEngine):
    """DDP with a hook that has connections of its own."""

    def __init__(self, strategy: Ring, job: Job) -> None:
        model, feed, ddp = replicate(job, strategy.bucket_MB)
        super().__init__(job, model, feed, ddp)
        self.ring = RingAllReduce(piece_bytes=int(strategy.piece_MB * MIB))
        # It sums and does not average, which is what weighted shards want.
        register_noted(ddp, job, self.ring, ring_hook)

    def close(self) -> None:
        self.ring.close()
