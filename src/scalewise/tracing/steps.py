"""Bytes per step as the kernel counted them, over blocks of steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scalewise.tracing import sockets

Barrier = Callable[[], object]


@dataclass
class StepTraffic:
    """What one rank sent and received in some steps.

    Counters are read between two barriers, while nothing else is under way; what the barriers send is measured once and
    taken off.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    steps: int = 0
    before: sockets.Counters | None = None
    barriers: sockets.Traffic | None = None

    def start(self, barrier: Barrier) -> None:
        barrier()
        if self.barriers is None:
            before = sockets.snapshot()
            barrier()
            barrier()
            self.barriers = sockets.snapshot() - before
        self.before = sockets.snapshot()
        barrier()

    def stop(self, steps: int, barrier: Barrier) -> None:
        """`steps` were done since `start`."""
        assert self.before is not None
        assert self.barriers is not None
        barrier()
        traffic = sockets.snapshot() - self.before
        barrier()
        self.sent_bytes += traffic.sent_bytes - self.barriers.sent_bytes
        self.received_bytes += traffic.received_bytes - self.barriers.received_bytes
        self.steps += steps
        self.before = None
