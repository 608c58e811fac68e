"""Bytes per step as the kernel counted them, over blocks of steps."""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.tracing import sockets


@dataclass
class StepTraffic:
    """What one rank sent and received in some steps."""

    sent_bytes: int = 0
    received_bytes: int = 0
    steps: int = 0
    before: sockets.Counters | None = None

    def start(self) -> None:
        self.before = sockets.snapshot()

    def stop(self, steps: int) -> None:
        """`steps` were done since `start`."""
        assert self.before is not None
        traffic = sockets.snapshot() - self.before
        self.sent_bytes += traffic.sent_bytes
        self.received_bytes += traffic.received_bytes
        self.steps += steps
        self.before = None
