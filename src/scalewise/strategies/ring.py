"""Ring all-reduce implemented with point-to-point messages: reduce-scatter, then all-gather."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from scalewise.hardware.collectives import PIECE_MB, Backend, Collective
from scalewise.strategies.base import AT_LEAST, LEAST_PIECE_MB, Strategy
from scalewise.strategies.mirrored import buckets_of, replicated_memory, replicated_plan
from scalewise.strategies.plan import Footprint, Plan
from scalewise.strategies.rank_memory import LayerMemories, RankMemory, TrainingRun


@dataclass(frozen=True)
class Ring(Strategy):
    """DDP whose buckets are all-reduced by Scalewise's own ring.

    Each of N devices sends 2 S (N-1)/N bytes per step for S bytes of parameters, always less than 2 S.
    """

    name: ClassVar[str] = "ring"
    summary: ClassVar[str] = "ring all-reduce with point-to-point messages: reduce-scatter, then all-gather"
    exact: ClassVar[bool] = True

    bucket_MB: float | None = None
    """Size of a gradient bucket in MiB; None: DDP's default, a first bucket of 1 and then 25."""
    piece_MB: float = field(default=PIECE_MB, metadata={AT_LEAST: LEAST_PIECE_MB})
    """Size in MiB of the pieces of a message, so that sending, receiving and adding overlap."""

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        def reduce(bucket: range) -> list[Collective]:
            size = sum(footprint.parameter_bytes[position] for position in bucket)
            return [Collective("all_reduce", backend, devices, size, self.piece_MB)]

        buckets = buckets_of(footprint.parameter_bytes, self.bucket_MB)
        return replicated_plan(footprint, devices, batch, buckets, reduce)

    def rank_memory(self, rank: int, run: TrainingRun, layers: LayerMemories) -> RankMemory:  # noqa: ARG002
        return replicated_memory(run, layers)
