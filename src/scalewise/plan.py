"""One step of a strategy as data: its operations, what each waits for, and the bytes it sends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from scalewise.collectives.send import Send


@dataclass(frozen=True)
class Footprint:
    """What a workload weighs: all that a plan needs to know of it, without torch."""

    parameter_bytes: tuple[int, ...]
    """One entry per trainable tensor, in the model's order."""
    input_bytes: int
    """Of one sample, as are the next two."""
    target_bytes: int
    output_bytes: int


@dataclass(frozen=True)
class Operation:
    """Seconds of one rank, or one transfer between two; `after` are positions in the plan that must have ended."""

    phase: str
    rank: int
    after: tuple[int, ...] = ()
    samples: int = 0
    """What a compute operation works on; the seconds come from a profile."""
    share: float = 1.0
    """The part of the phase's seconds that this operation takes (a bucket's part of backward, say)."""
    send: Send | None = None


@dataclass(frozen=True)
class Plan:
    """The operations of one step over all ranks."""

    operations: tuple[Operation, ...]

    @property
    def bytes_per_step(self) -> int:
        """Sent in total, over all ranks."""
        return sum(operation.send.bytes for operation in self.operations if operation.send)

    @property
    def busiest_bytes(self) -> int:
        """The most that one rank sends plus receives."""
        crossing: Counter[int] = Counter()
        for operation in self.operations:
            if operation.send:
                crossing[operation.send.source] += operation.send.bytes
                crossing[operation.send.target] += operation.send.bytes
        return max(crossing.values(), default=0)
