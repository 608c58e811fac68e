"""How long devices wait for each other by a plan alone, before anything is timed."""

from __future__ import annotations

from collections import defaultdict

from scalewise.plan import Plan

RELATIVE_SECONDS = {"forward": 1.0, "backward": 2.0}
"""Of a sample; all else takes no time."""


def idle_shares(plan: Plan, devices: int) -> list[float]:
    """Of every device, the part of a step in which it waits."""
    ends: list[float] = []
    busy: dict[int, float] = defaultdict(float)
    for operation in plan.operations:
        ready = max((ends[before] for before in operation.after), default=0.0)
        seconds = RELATIVE_SECONDS.get(operation.phase, 0.0) * operation.samples * operation.share
        busy[operation.rank] += seconds
        ends.append(ready + seconds)
    return [1 - busy[rank] / max(ends) for rank in range(devices)]
