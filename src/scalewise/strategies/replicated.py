"""The plan shared by strategies that mirror the model and all-reduce its gradients in buckets, beside backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scalewise.collectives.collective import Collective
from scalewise.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.shares import alike_shares

DDP_CALLS = 5
"""To a device, for every gradient that is put into its bucket."""


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
            for first, count, samples in alike
        }

    done: dict[int, tuple[int, ...]] = {first: () for first, _, _ in alike}
    for phase in ("load", "forward", "loss"):
        done = every(phase, done)
    reduced: tuple[int, ...] = ()
    waits = False
    for bucket, share in zip(buckets, footprint.backward_shares(buckets), strict=True):
        # DDP reads every gradient and writes it, divided, into its bucket.
        size = sum(footprint.parameter_bytes[position] for position in bucket)
        done = every("backward", done, share, *((2 * size, DDP_CALLS * len(bucket), share) if devices > 1 else ()))
        for collective in reduce(bucket):
            waits = collective.backend == "gloo"
            # Collectives of one group run one after the other.
            ready = tuple(position for positions in done.values() for position in positions)
            reduced = builder.collective("reduce", collective, ready + reduced) if devices > 1 else ()
    # The host has waited for the last bucket, and only now asks for the update.
    waited = 1.0 if devices > 1 and waits else 0.0
    every("update", {first: positions + reduced for first, positions in done.items()}, called_share=waited)
    return builder.plan()
