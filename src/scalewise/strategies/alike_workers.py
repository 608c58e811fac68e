"""The study's DataParallel over thousands of devices: all but the default one are alike, planned once."""

from __future__ import annotations

from scalewise.collectives import point_to_point
from scalewise.plan import Ends, Footprint, Plan, PlanBuilder
from scalewise.strategies.shares import alike_shares
from scalewise.strategies.strategy import Backend


def alike_workers_plan(footprint: Footprint, devices: int, batch: int, backend: Backend) -> Plan:
    """The eight steps of `DataParallel`, except that no device goes on before the last one like it can.

    Ranks 0 to N-2 are the others; the default device comes after them, where sends that are alike want their hub.
    """
    builder = PlanBuilder()
    root, own = devices - 1, -(-batch // devices)
    workers = [each for each in alike_shares(batch - own, root) if each[2]]
    model = sum(footprint.parameter_bytes)

    def exchange(phase: str, outwards: bool, bytes_per_sample: int, ready: Ends, fixed_bytes: int = 0) -> Ends:
        ends: Ends = {}
        for first, count, samples in workers:
            way = (root, first) if outwards else (first, root)
            sends = point_to_point(backend, *way, samples * bytes_per_sample + fixed_bytes)
            made = builder.transfer(phase, sends, ready, count)
            ends = {**ends, **made, root: ends.get(root, ()) + made.get(root, ())}
        return ends

    def compute(phase: str, after: Ends, otherwise: tuple[int, ...], copied_bytes: int = 0) -> Ends:
        everyone = [*((first, count, samples, copied_bytes) for first, count, samples in workers), (root, 1, own, 0)]
        return {
            rank: builder.compute(phase, rank, samples, after.get(rank) or otherwise, 1.0, count, copied)
            for rank, count, samples, copied in everyone
        }

    loaded = builder.compute("load", root, batch)
    scattered = exchange("scatter", True, footprint.input_bytes, {root: loaded})
    at_root = scattered.get(root) or loaded
    have = exchange("broadcast", True, 0, {root: at_root}, model)
    ends = compute("forward", have, loaded)
    gathered = exchange("gather", False, footprint.output_bytes, ends)
    loss = builder.compute("loss", root, batch, ends[root] + gathered.get(root, ()))
    returned = exchange("scatter", True, footprint.output_bytes, {root: loss})
    ends = compute("backward", returned, loss, 2 * model)
    reduced = exchange("reduce", False, 0, ends, model)
    others = sum(count for _, count, _ in workers)
    builder.compute("update", root, batch, ends[root] + reduced.get(root, ()), moved_bytes=3 * others * model)
    return builder.plan()
