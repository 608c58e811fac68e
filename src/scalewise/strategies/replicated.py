"""The plan shared by strategies that mirror the model and all-reduce its gradients in buckets, beside backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scalewise.collectives.send import Send
from scalewise.plan import Plan, PlanBuilder
from scalewise.strategies.shares import share_sizes


def replicated_plan(
    devices: int, batch: int, buckets: Sequence[int], all_reduce: Callable[[int], Sequence[Send]]
) -> Plan:
    """Every bucket is reduced once all ranks have its gradients, while backward goes on to the next.

    rank 0  forward | backward bucket 0 | backward bucket 1 |          | update
    links                               | reduce bucket 0   | reduce 1 |
    """
    builder = PlanBuilder()
    samples = share_sizes(batch, devices)
    ranks = range(devices)
    done = {rank: builder.compute("load", rank, samples[rank]) for rank in ranks}
    for phase in ("forward", "loss"):
        done = {rank: builder.compute(phase, rank, samples[rank], done[rank]) for rank in ranks}
    total = sum(buckets)
    reduced: dict[int, tuple[int, ...]] = dict.fromkeys(ranks, ())
    for size in buckets:
        done = {rank: builder.compute("backward", rank, samples[rank], done[rank], size / total) for rank in ranks}
        # Collectives of one group run one after the other.
        ends = builder.transfer("reduce", all_reduce(size), {rank: done[rank] + reduced[rank] for rank in ranks})
        reduced = {rank: ends.get(rank, ()) for rank in ranks}
    for rank in ranks:
        builder.compute("update", rank, samples[rank], done[rank] + reduced[rank])
    return builder.plan()
