"""Central storage: variables, gradients and optimizer in host memory; devices only compute, layer by layer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from scalewise.collectives.send import Send
from scalewise.plan import Ends, Footprint, Plan, PlanBuilder
from scalewise.strategies.shares import share_sizes
from scalewise.strategies.strategy import AT_LEAST, Backend

LENT_CALLS, GIVEN_CALLS = 21, 17
"""To a device, for a weight that is fetched and a gradient that is given: memory, copies, and who waits for whom."""


@dataclass(frozen=True)
class CentralStorage:
    """A weight is on a device only while it is needed there, so models train whose weights do not fit one.

    Two fetches and one gradient per device, 3 S N in all, less what backward need not read again.
    """

    name: ClassVar[str] = "central-storage"
    summary: ClassVar[str] = "weights and updates in host memory; devices fetch them layer by layer, and give them back"
    exact: ClassVar[bool] = True

    prefetch: int = field(default=1, metadata={AT_LEAST: 0})
    """Layers fetched ahead of the one at work."""

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        """Ranks 0 to N-1 are devices, N is the host's memory: copies, so no backend adds to them.

        device  | forward 0 | forward 1 |  ...  loss  | backward 1 | backward 0 |      | (meet) update (meet)
        copies  | pull 1    | pull 2    |  ...        | pull 0     | push 1     | push 0
        """
        builder = PlanBuilder()
        samples = share_sizes(batch, devices)
        pushed: tuple[int, ...] = ()
        for rank in range(devices):
            pushed += self._step_of(rank, samples[rank], footprint, devices, builder)
        summed = 3 * (devices - 1) * sum(footprint.parameter_bytes) // devices
        all_here = builder.meet(devices, backend, pushed)
        updated: tuple[int, ...] = ()
        for rank in range(devices):
            updated += builder.compute(
                "update", rank, batch, all_here, 1 / devices, moved_bytes=summed, in_host_memory=True
            )
        builder.meet(devices, backend, updated)
        return builder.plan()

    def _step_of(
        self, rank: int, samples: int, footprint: Footprint, host: int, builder: PlanBuilder
    ) -> tuple[int, ...]:
        """One device from load to its last gradient; what the update waits for."""
        total = sum(footprint.parameter_bytes)
        sizes = footprint.parameter_bytes
        again = footprint.read_again or (True,) * len(sizes)
        shares = footprint.backward_shares([range(position, position + 1) for position in range(len(sizes))])
        done = builder.compute("load", rank, samples)
        computed = deque([done] * (self.prefetch + 1), self.prefetch + 1)

        def pull(size: int) -> Ends:
            return builder.transfer("pull", [Send(host, rank, size)], {host: computed[0]})

        for size in reversed(sizes):
            fetched = pull(size)
            done = builder.compute("forward", rank, samples, done + fetched[rank], size / total, calls=LENT_CALLS)
            computed.append(done)
        done = builder.compute("loss", rank, samples, done)
        pushed: tuple[int, ...] = ()
        for size, read, share in zip(sizes, again, shares, strict=True):
            before = done + (pull(size)[rank] if read else ())
            calls = GIVEN_CALLS + LENT_CALLS * read
            done = builder.compute("backward", rank, samples, before, share, calls=calls)
            computed.append(done)
            pushed += builder.transfer("push", [Send(rank, host, size)], {rank: done})[host]
        return pushed
