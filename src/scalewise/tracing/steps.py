"""Bytes per step as the kernel counted them, over blocks of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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
    servers: Mapping[sockets.Address, int] = field(default_factory=dict)
    """Which server is at the far end of a connection."""
    except_port: int | None = None
    """Of a store, through which what checkpoints need may cross within a step."""
    by_server: dict[int, sockets.Flow] = field(default_factory=dict)
    before: sockets.Counters | None = None
    barriers: sockets.Traffic | None = None

    @property
    def sent_per_step(self) -> float:
        return self.sent_bytes / self.steps

    @property
    def received_per_step(self) -> float:
        return self.received_bytes / self.steps

    def with_server_per_step(self, server: int) -> tuple[float, float]:
        """Sent to it, and received from it."""
        flow = self.by_server[server]
        return flow.sent_bytes / self.steps, flow.received_bytes / self.steps

    def start(self, barrier: Barrier) -> None:
        barrier()
        if self.barriers is None:
            before = sockets.snapshot(self.except_port)
            barrier()
            barrier()
            self.barriers = sockets.snapshot(self.except_port) - before
        self.before = sockets.snapshot(self.except_port)
        barrier()

    def stop(self, steps: int, barrier: Barrier) -> None:
        """`steps` were done since `start`."""
        assert self.before is not None
        assert self.barriers is not None
        barrier()
        traffic = sockets.snapshot(self.except_port) - self.before
        barrier()
        self.sent_bytes += traffic.sent_bytes - self.barriers.sent_bytes
        self.received_bytes += traffic.received_bytes - self.barriers.received_bytes
        self.steps += steps
        self._share_out(traffic)
        self.before = None

    def add_lines(self, traffic: sockets.Traffic, steps: int) -> None:
        """What crossed the lines to servers in `steps`, without a barrier: nobody else uses them."""
        self._share_out(traffic)
        self.sent_bytes += sum(flow.sent_bytes for flow in self.by_server.values())
        self.received_bytes += sum(flow.received_bytes for flow in self.by_server.values())
        self.steps += steps

    def _share_out(self, traffic: sockets.Traffic) -> None:
        for peer, flow in traffic.by_peer.items():
            if peer in self.servers:
                number = self.servers[peer]
                self.by_server[number] = self.by_server.get(number, sockets.Flow(0, 0)) + flow
