"""A simulated step as spans: compute as it ran, waiting named after what was waited for, and the links beside it."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from scalewise.plan import Operation
from scalewise.timeline import Span

INSTANT = 1e-12


def spans_of(operations: Sequence[Operation], starts: Sequence[float], ends: Sequence[float]) -> list[Span]:
    """Every rank's compute lane is full from the start of the step to its end."""
    computing: dict[int, list[int]] = defaultdict(list)
    touching: dict[int, list[int]] = defaultdict(list)
    spans: list[Span] = []
    transfers: list[int] = []
    for position, operation in enumerate(operations):
        if _between(operation):
            transfers.append(position)
        else:
            computing[operation.rank].append(position)
    ranks = sorted(computing)
    for position in transfers:
        operation, start = operations[position], starts[position]
        spans.append(Span(operation.rank, operation.phase, start, ends[position] - start, "network"))
        for rank in taking_part(operation, ranks):
            touching[rank].append(position)
    step_end = max(ends)
    for rank, positions in computing.items():
        waits = _Waits(operations, starts, ends, rank, touching[rank])
        now = 0.0
        for position in sorted(positions, key=lambda each: (starts[each], each)):
            spans += waits.between(now, starts[position], operations[position].after)
            spans.append(Span(rank, operations[position].phase, starts[position], ends[position] - starts[position]))
            now = ends[position]
        spans += waits.between(now, step_end, tuple(touching[rank]))
    return spans


class _Waits:
    """What one rank was waiting for when it did not compute."""

    def __init__(
        self,
        operations: Sequence[Operation],
        starts: Sequence[float],
        ends: Sequence[float],
        rank: int,
        touching: Sequence[int],
    ) -> None:
        self.operations, self.starts, self.ends = operations, starts, ends
        self.rank, self.touching = rank, touching

    def between(self, start: float, end: float, after: tuple[int, ...]) -> list[Span]:
        """The chain of what was waited for, last first; waiting for another rank's compute is idling."""
        spans: list[Span] = []
        while end - start > INSTANT:
            before = max(after, key=self.ends.__getitem__, default=None)
            if before is None or self.ends[before] <= start:
                spans.append(Span(self.rank, self._disturbed(start, end), start, end - start))
                break
            operation = self.operations[before]
            began = max(start, self.starts[before])
            spans.append(Span(self.rank, operation.phase if _between(operation) else "idle", began, end - began))
            end, after = began, operation.after
        return spans

    def _disturbed(self, start: float, end: float) -> str:
        """Nothing was waited for: a transfer took the device's time."""
        for position in self.touching:
            if self.starts[position] < end and self.ends[position] > start:
                return self.operations[position].phase
        return "idle"


def taking_part(operation: Operation, ranks: Sequence[int]) -> list[int]:
    """Which of the ranks that compute, in order, a transfer touches."""
    if operation.send is None:
        own = _own(operation)
        return [rank for rank in ranks if rank in own]
    lower, upper = operation.send.source, operation.send.target
    if lower > upper:
        lower, upper = upper, lower
    first, end = bisect_left(ranks, lower), bisect_left(ranks, lower + operation.count)
    other = bisect_left(ranks, upper)
    return [*ranks[first:end], *ranks[other : other + (other < len(ranks) and ranks[other] == upper)]]


def _own(operation: Operation) -> range:
    collective = operation.collective
    if collective is None:
        return range(operation.rank, operation.rank + operation.count)
    return range(operation.rank, operation.rank + collective.stride * collective.ranks, collective.stride)


def _between(operation: Operation) -> bool:
    return operation.send is not None or operation.collective is not None
