"""Operations that wait for others and for their turn; each begins as soon as it can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush


def run(after: Sequence[Sequence[int]], place: Callable[[int, float], float]) -> list[float]:
    """When each operation ends. `place(position, ready)` is asked once for each, in order of readiness."""
    waiting = [0] * len(after)
    followers: list[list[int]] = [[] for _ in after]
    for position, before in enumerate(after):
        distinct = set(before) if len(before) > 1 else before
        waiting[position] = len(distinct)
        for earlier in distinct:
            followers[earlier].append(position)
    ready = [0.0] * len(after)
    ends = [0.0] * len(after)
    turn = [(0.0, position) for position, count in enumerate(waiting) if not count]
    heapify(turn)
    while turn:
        moment, position = heappop(turn)
        ends[position] = end = place(position, moment)
        for follower in followers[position]:
            if end > ready[follower]:
                ready[follower] = end
            waiting[follower] -= 1
            if not waiting[follower]:
                heappush(turn, (ready[follower], follower))
    return ends
