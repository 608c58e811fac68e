"""The plan shared by strategies that mirror the model and all-reduce its gradients in buckets, beside backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scalewise.collectives.send import Send
from scalewise.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.shares import share_sizes


def replicated_plan(
    footprint: Footprint,
    devices: int,
    batch: int,
    buckets: Sequence[range],
    reduce: Callable[[range], Sequence[Sequence[Send]]],
) -> Plan:
    """Every bucket is reduced, by one collective or several, once all ranks have its gradients.

    rank 0  forward | backward bucket 0 | backward bucket 1 |          | update
    links                               | reduce bucket 0   | reduce 1 |
    """
    builder = PlanBuilder()
    samples = share_sizes(batch, devices)
    ranks = range(devices)
    done = {rank: builder.compute("load", rank, samples[rank]) for rank in ranks}
    for phase in ("forward", "loss"):
        done = {rank: builder.compute(phase, rank, samples[rank], done[rank]) for rank in ranks}
    total = sum(footprint.parameter_bytes)
    reduced: dict[int, tuple[int, ...]] = dict.fromkeys(ranks, ())
    for bucket in buckets:
        share = sum(footprint.parameter_bytes[position] for position in bucket) / total
        done = {rank: builder.compute("backward", rank, samples[rank], done[rank], share) for rank in ranks}
        for sends in reduce(bucket):
            # Collectives of one group run one after the other.
            ends = builder.transfer("reduce", sends, {rank: done[rank] + reduced[rank] for rank in ranks})
            reduced |= ends
    for rank in ranks:
        builder.compute("update", rank, samples[rank], done[rank] + reduced[rank])
    return builder.plan()
