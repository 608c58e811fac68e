"""Ring all-reduce written out: reduce-scatter, then all-gather, between neighbours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from scalewise.collectives.collective import Collective
from scalewise.collectives.ring import PIECE_MB
from scalewise.plan import Footprint, Plan
from scalewise.strategies.buckets import buckets_of
from scalewise.strategies.replicated import replicated_plan
from scalewise.strategies.strategy import AT_LEAST, LEAST_PIECE_MB, Backend


@dataclass(frozen=True)
class Ring:
    """DDP whose buckets travel round our own ring: 2 S (N-1)/N per device, below 2 S however many devices."""

    name: ClassVar[str] = "ring"
    summary: ClassVar[str] = "ring all-reduce written out: reduce-scatter and all-gather between neighbours"
    exact: ClassVar[bool] = True

    bucket_MB: float | None = None
    """As for mirrored."""
    piece_MB: float = field(default=PIECE_MB, metadata={AT_LEAST: LEAST_PIECE_MB})
    """Chunks travel in pieces of this size, so that sending, receiving and adding overlap."""

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        def reduce(bucket: range) -> list[Collective]:
            size = sum(footprint.parameter_bytes[position] for position in bucket)
            return [Collective("all_reduce", backend, devices, size, self.piece_MB)]

        buckets = buckets_of(footprint.parameter_bytes, self.bucket_MB)
        return replicated_plan(footprint, devices, batch, buckets, reduce)
