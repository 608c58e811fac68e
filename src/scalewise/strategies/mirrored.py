"""Mirrored: the model on every device, gradients all-reduced; over several hosts, multi-worker mirrored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from scalewise.collectives.collective import Collective
from scalewise.errors import UserError
from scalewise.plan import Footprint, Plan
from scalewise.strategies.buckets import buckets_of
from scalewise.strategies.powersgd import powersgd_bytes
from scalewise.strategies.replicated import replicated_plan
from scalewise.strategies.strategy import Backend

ONE_BUCKET_MB = 2.0**20


@dataclass(frozen=True)
class Mirrored:
    """torch's DistributedDataParallel."""

    name: ClassVar[str] = "mirrored"
    summary: ClassVar[str] = "the model on every device, gradients all-reduced (torch DDP)"

    bucket_MB: float | None = None
    """Size of a gradient bucket; None is DDP's own choice, 25 with a first one of 1."""
    compress: Literal["none", "fp16", "powersgd"] = "none"
    """fp16 halves what is sent, PowerSGD sends low-rank factors: neither is exact."""

    def __post_init__(self) -> None:
        if self.compress == "powersgd" and self.bucket_MB is not None:
            raise UserError(f"PowerSGD sends all gradients as one bucket; leave bucket_MB={self.bucket_MB:g} out")

    @property
    def exact(self) -> bool:
        return self.compress == "none"

    @property
    def bucket_limit_MB(self) -> float | None:
        """torch's PowerSGD hook waits inside gloo's two threads: two buckets under way would lock them up."""
        return ONE_BUCKET_MB if self.compress == "powersgd" else self.bucket_MB

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        def reduce(bucket: range) -> list[Collective]:
            return [Collective("all_reduce", backend, devices, size) for size in self._reduced_bytes(footprint, bucket)]

        buckets = buckets_of(footprint.parameter_bytes, self.bucket_limit_MB)
        return replicated_plan(footprint, devices, batch, buckets, reduce)

    def _reduced_bytes(self, footprint: Footprint, bucket: range) -> list[int]:
        """Of every all-reduce that a bucket takes."""
        size = sum(footprint.parameter_bytes[position] for position in bucket)
        if self.compress == "fp16":
            return [size // 2]
        if self.compress == "powersgd":
            return powersgd_bytes((footprint.parameter_shapes[position] for position in bucket), element_bytes=4)
        return [size]
