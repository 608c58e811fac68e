"""Workers whose staleness is bounded: how long each waits, in a round, for those that are behind."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

ROUNDS, SETTLED = 24, 4
"""Of the slowest worker: so many are followed, and the first of them not counted."""


def waits_of(cycles: Sequence[float], max_staleness: int) -> list[float]:
    """Mean seconds that each worker waits, given those of its round when it waits for nobody.

    As servers do it: pushes are applied as soon as none that is still awaited would become too stale by it, else they
    wait for it and make one version together. With a bound of 1 and a worker that takes four times as long:

    fast  |--push--|--push......|--push--|--push......|
    slow  |--------------------push------------------push
    """
    version, holding = 0, [0] * len(cycles)
    pending: dict[int, float] = {}
    waited, rounds = [0.0] * len(cycles), [0] * len(cycles)
    slowest, seen = max(range(len(cycles)), key=cycles.__getitem__), 0
    pushes = [(cycle, worker) for worker, cycle in enumerate(cycles)]
    heapify(pushes)
    while seen < ROUNDS:
        now, worker = heappop(pushes)
        pending[worker] = now
        awaited = (held for other, held in enumerate(holding) if other not in pending)
        if any(version + 1 - held > max_staleness for held in awaited):
            continue
        version += 1
        counts = seen >= SETTLED
        seen += slowest in pending
        for each, arrived in pending.items():
            holding[each] = version
            if counts:
                waited[each] += now - arrived
                rounds[each] += 1
            heappush(pushes, (now + cycles[each], each))
        pending.clear()
    return [seconds / count if count else 0.0 for seconds, count in zip(waited, rounds, strict=True)]
