"""Hybrid over thousands of devices: groups that are all alike, planned once."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from scalewise.collectives.collective import Collective
from scalewise.plan import Footprint, Plan, PlanBuilder
from scalewise.strategies.buckets import buckets_of
from scalewise.strategies.cut_step import Pass, Sum, backward_pass, forward_pass, part_bytes
from scalewise.strategies.cuts import Cut
from scalewise.strategies.strategy import Backend


def alike_groups_plan(
    footprint: Footprint, cuts: Mapping[str, Cut], devices: int, inside: int, batch: int, backend: Backend
) -> Plan:
    """The first group's, for all: every group has as many samples as the fullest. Sums hold a group up, gradients
    travel between groups beside backward, in DDP's buckets.

    inside   forward | sum | forward | sum |  loss  backward | sum | backward          | update
    across                                                         | reduce 0 | reduce 1
    """
    builder = PlanBuilder()
    groups = devices // inside
    samples = max(1, -(-batch // groups))

    def compute(phase: str, after: tuple[int, ...], share: float = 1.0) -> tuple[int, ...]:
        return builder.compute(phase, 0, samples, after, share, devices)

    def go_through(
        phase: str, passed: Pass, buckets: list[tuple[float, int]], done: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        before = 0.0
        reduced: tuple[int, ...] = ()
        events: list[Sum | tuple[float, int]] = [*passed.sums, *buckets]
        for event in sorted(events, key=lambda each: each.at if isinstance(each, Sum) else each[0]):
            at = event.at if isinstance(event, Sum) else event[0]
            done = compute(phase, done, at - before)
            before = at
            if isinstance(event, Sum):
                size = event.bytes * samples
                done = builder.collective("reduce", Collective("all_reduce", backend, inside, size), done)
            else:
                across = Collective("all_reduce", backend, groups, event[1], stride=inside)
                reduced = builder.collective("reduce", across, done + reduced) if groups > 1 else ()
        return compute(phase, done, passed.share - before), reduced

    done, _ = go_through("forward", forward_pass(footprint.matrices, cuts), [], compute("load", ()))
    backward = backward_pass(footprint.matrices, cuts)
    sizes = part_bytes(footprint, cuts, 0)
    done, reduced = go_through("backward", backward, _buckets(footprint, sizes, backward.share), compute("loss", done))
    compute("update", done + reduced, sum(sizes) / sum(footprint.parameter_bytes))
    return builder.plan()


def _buckets(footprint: Footprint, sizes: list[int], share: float) -> list[tuple[float, int]]:
    """(how much of backward is done by then, bytes): as DDP packs what the first device of a group has."""
    ready = list(accumulate(footprint.backward_shares([range(at, at + 1) for at in range(len(sizes))])))
    there = [at for at, size in enumerate(sizes) if size]
    return [
        (share * max(ready[there[at]] for at in bucket), sum(sizes[there[at]] for at in bucket))
        for bucket in buckets_of([sizes[at] for at in there], None)
    ]
