"""Mirrored: the model on every device, gradients all-reduced; over several hosts, multi-worker mirrored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from scalewise.collectives import sends
from scalewise.plan import Footprint, Plan
from scalewise.strategies.buckets import buckets_of
from scalewise.strategies.replicated import replicated_plan
from scalewise.strategies.strategy import Backend


@dataclass(frozen=True)
class Mirrored:
    """torch's DistributedDataParallel."""

    name: ClassVar[str] = "mirrored"
    summary: ClassVar[str] = "the model on every device, gradients all-reduced (torch DDP)"

    bucket_MB: float | None = None
    """Size of a gradient bucket; None is DDP's own choice, 25 with a first one of 1."""
    compress: Literal["none", "fp16", "powersgd"] = "none"
    """fp16 halves what is sent, PowerSGD sends low-rank factors: neither is exact."""

    @property
    def exact(self) -> bool:
        return self.compress == "none"

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        """PowerSGD's factors depend on tensor shapes, which a footprint has; it is planned as they are sent."""
        buckets = buckets_of(footprint.parameter_bytes, self.bucket_MB)
        divisor = 2 if self.compress == "fp16" else 1
        return replicated_plan(
            devices, batch, buckets, lambda size: sends(backend, "all_reduce", devices, size // divisor)
        )
