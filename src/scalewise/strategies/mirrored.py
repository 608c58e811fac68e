"""Mirrored: a replica on every device, gradients all-reduced (torch DDP)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from scalewise.core.errors import UserError
from scalewise.core.training_options import Precision
from scalewise.hardware.collectives import Backend, Collective
from scalewise.strategies.base import COMPILED_RANKS, Strategy
from scalewise.strategies.plan import Footprint, Plan, PlanBuilder, alike_shares
from scalewise.strategies.rank_memory import LayerMemories, RankMemory, TrainingRun, weights_of

DDP_CALLS = 5
"""Device calls of DDP to copy one gradient into its bucket."""


def replicated_plan(
    footprint: Footprint,
    devices: int,
    batch: int,
    buckets: Sequence[range],
    reduce: Callable[[range], Sequence[Collective]],
) -> Plan:
    """Plan one step. A bucket is reduced, by one collective or several, when all ranks have its gradients.

    rank 0  forward | backward bucket 0 | backward bucket 1 |          | update
    links                               | reduce bucket 0   | reduce 1 |
    """
    builder = PlanBuilder()
    ranks = alike_shares(batch, devices)

    def compute_all(
        phase: str,
        after: dict[int, tuple[int, ...]],
        share: float = 1.0,
        moved_bytes: int = 0,
        calls: int = 0,
        called_share: float = 0.0,
    ) -> dict[int, tuple[int, ...]]:
        return {
            first: builder.compute(
                phase, first, samples, after[first], share, count, moved_bytes, calls=calls, called_share=called_share
            )
            for first, count, samples in ranks
        }

    done: dict[int, tuple[int, ...]] = {first: () for first, _, _ in ranks}
    for phase in ("load", "forward", "loss"):
        done = compute_all(phase, done)
    reduced: tuple[int, ...] = ()
    host_waits = False
    for bucket, share in zip(buckets, footprint.backward_shares(buckets), strict=True):
        # DDP reads every gradient and writes it, divided by the world size, into its bucket.
        size = sum(footprint.parameter_bytes[position] for position in bucket)
        done = compute_all(
            "backward", done, share, *((2 * size, DDP_CALLS * len(bucket), share) if devices > 1 else ())
        )
        for collective in reduce(bucket):
            host_waits = collective.backend == "gloo"
            # Collectives of a process group run one after the other.
            ready = tuple(position for positions in done.values() for position in positions)
            reduced = builder.collective("reduce", collective, ready + reduced) if devices > 1 else ()
    # With gloo the host waits for the last bucket, and launches the update only afterwards.
    called_share = 1.0 if devices > 1 and host_waits else 0.0
    compute_all("update", {first: positions + reduced for first, positions in done.items()}, called_share=called_share)
    return builder.plan()


def replicated_memory(run: TrainingRun, layers: LayerMemories, buffer_bytes: int = 0) -> RankMemory:
    """Memory of a rank whose gradients are always in buckets, also between steps."""
    return RankMemory(layers, run.inputs(run.part_of_share), gradients="stay", buffer_bytes=buffer_bytes)


MIB = 2**20
FIRST_BUCKET_BYTES = MIB
DEFAULT_BUCKET_MB = 25


def buckets_of(ready_bytes: Sequence[int], bucket_MB: float | None) -> list[range]:
    """Group gradients into buckets, given their bytes in the order in which they become ready.

    A bucket closes when it reaches its limit, so it may be much larger. With DDP's default limit (None) the first
    bucket is small, so that communication starts early.
    """
    limits = [FIRST_BUCKET_BYTES, DEFAULT_BUCKET_MB * MIB] if bucket_MB is None else [int(bucket_MB * MIB)]
    buckets: list[range] = []
    first = filling = 0
    for position, size in enumerate(ready_bytes):
        filling += size
        if filling >= limits[min(len(buckets), len(limits) - 1)]:
            buckets.append(range(first, position + 1))
            first, filling = position + 1, 0
    return [*buckets, range(first, len(ready_bytes))] if first < len(ready_bytes) else buckets


RANK = 1
LEAST_COMPRESSION = 2
"""Defaults of torch's PowerSGD hook: rank of the factors, and minimum compression of a tensor that is factored."""


def powersgd_bytes(shapes: Iterable[tuple[int, ...]], element_bytes: int) -> list[int]:
    """Bytes of the three all-reduces of a PowerSGD bucket: uncompressed tensors, left factors, right factors."""
    uncompressed = left = right = 0
    for shape in shapes:
        rows = shape[0] if shape else 1
        columns = math.prod(shape[1:])
        if rows * columns > (rows + columns) * RANK * LEAST_COMPRESSION:
            left += rows * RANK
            right += columns * RANK
        else:
            uncompressed += rows * columns
    return [count * element_bytes for count in (uncompressed, left, right)]


ONE_BUCKET_MB = 2.0**20
"""Bucket size that puts all gradients into one bucket."""
LARGE_BUCKET_MB = 100.0
"""Bucket size that `advise` compares with DDP's default."""


@dataclass(frozen=True)
class Mirrored(Strategy):
    """Data parallelism with torch's DistributedDataParallel."""

    name: ClassVar[str] = "mirrored"
    summary: ClassVar[str] = "a copy of the model on every device, gradients all-reduced (torch DDP)"
    executions: ClassVar[Mapping[str, Sequence[str]]] = {**COMPILED_RANKS, "precision": get_args(Precision)}

    bucket_MB: float | None = None
    """Size of a gradient bucket in MiB; None: DDP's default, a first bucket of 1 and then 25."""
    compress: Literal["none", "fp16", "powersgd"] = "none"
    """Gradient compression: fp16 halves the bytes sent, powersgd sends low-rank factors. Neither is exact."""

    def __post_init__(self) -> None:
        if self.compress == "powersgd" and self.bucket_MB is not None:
            raise UserError(f"PowerSGD sends all gradients as one bucket; leave bucket_MB={self.bucket_MB:g} out")

    @property
    def exact(self) -> bool:
        return self.compress == "none"

    @property
    def standard(self) -> bool:
        return self == Mirrored()

    def variants(self) -> list[tuple[str, Strategy]]:
        return [
            ("mirrored with fp16 gradients (not exact)", Mirrored(compress="fp16")),
            (f"mirrored with buckets of {LARGE_BUCKET_MB:g} MB", Mirrored(bucket_MB=LARGE_BUCKET_MB)),
        ]

    @property
    def bucket_limit_MB(self) -> float | None:
        """Bucket size in MiB. PowerSGD uses one bucket: torch's hook blocks a gloo thread for each, and deadlocks with
        two."""
        return ONE_BUCKET_MB if self.compress == "powersgd" else self.bucket_MB

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        def reduce(bucket: range) -> list[Collective]:
            return [Collective("all_reduce", backend, devices, size) for size in self._reduced_bytes(footprint, bucket)]

        buckets = buckets_of(footprint.parameter_bytes, self.bucket_limit_MB)
        return replicated_plan(footprint, devices, batch, buckets, reduce)

    def rank_memory(self, rank: int, run: TrainingRun, layers: LayerMemories) -> RankMemory:  # noqa: ARG002
        """Memory of a replica, plus the fp16 copy of the gradients or the error that PowerSGD keeps."""
        extra = {"none": 0.0, "fp16": 0.5, "powersgd": 1.0}[self.compress]
        return replicated_memory(run, layers, buffer_bytes=round(extra * weights_of(layers)))

    def _reduced_bytes(self, footprint: Footprint, bucket: range) -> list[int]:
        """Bytes of each all-reduce of a bucket."""
        size = sum(footprint.parameter_bytes[position] for position in bucket)
        if self.compress == "fp16":
            return [size // 2]
        if self.compress == "powersgd":
            return powersgd_bytes((footprint.parameter_shapes[position] for position in bucket), element_bytes=4)
        return [size]
