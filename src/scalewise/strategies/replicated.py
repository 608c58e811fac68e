"""The plan shared by strategies that mirror the model and all-reduce its gradients in buckets, beside backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scalewise.collectives.collective import Collective
from scalewise.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.shares import alike_shares


def replicated_plan(
    footprint: Footprint,
    devices: int,
    batch: int,
    buckets: Sequence[range],
    reduce: Callable[[range], Sequence[Collective]],
) -> Plan:
    """Every bucket is reduced, by one collective or several, once all ranks have its gradients.

    rank 0  forward | backward bucket 0 | backward bucket 1 |          | update
    links                               | reduce bucket 0   | reduce 1 |
    """
    builder = PlanBuilder()
    alike = alike_shares(batch, devices)

    def every(
        phase: str, after: dict[int, tuple[int, ...]], share: float = 1.0, moved_bytes: int = 0
    ) -> dict[int, tuple[int, ...]]:
        return {
            first: builder.compute(phase, first, samples, after[first], share, count, moved_bytes)
            for first, count, samples in alike
        }

    done: dict[int, tuple[int, ...]] = {first: () for first, _, _ in alike}
    for phase in ("load", "forward", "loss"):
        done = every(phase, done)
    reduced: tuple[int, ...] = ()
    for bucket, share in zip(buckets, footprint.backward_shares(buckets), strict=True):
        # DDP reads every gradient and writes it, divided, into its bucket.
        size = sum(footprint.parameter_bytes[position] for position in bucket)
        done = every("backward", done, share, 2 * size if devices > 1 else 0)
        for collective in reduce(bucket):
            # Collectives of one group run one after the other.
            ready = tuple(position for positions in done.values() for position in positions)
            reduced = builder.collective("reduce", collective, ready + reduced) if devices > 1 else ()
    every("update", {first: positions + reduced for first, positions in done.items()})
    return builder.plan()
