"""Engine of the ring strategy."""

from __future__ import annotations

from scalewise.engines.base import EagerEngine, Job
from scalewise.engines.mirrored import register_timed_hook, replicate
from scalewise.runtime.ring_all_reduce import RingAllReduce, ring_hook
from scalewise.strategies.mirrored import MIB
from scalewise.strategies.ring import Ring


class RingEngine(EagerEngine):
    """DDP with a communication hook that all-reduces over its own ring of connections."""

    def __init__(self, strategy: Ring, job: Job) -> None:
        model, feed, ddp = replicate(job, strategy.bucket_MB)
        super().__init__(job, model, feed, ddp)
        self.ring = RingAllReduce(piece_bytes=int(strategy.piece_MB * MIB))
        # The ring sums gradients without averaging, because the losses of shares are weighted already.
        register_timed_hook(ddp, job, self.ring, ring_hook)

    def close(self) -> None:
        self.ring.close()
