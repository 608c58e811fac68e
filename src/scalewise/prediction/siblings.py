"""How much longer a device takes while its siblings work: cores of one processor share memory and its bandwidth."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from scalewise.clusters.cluster import Device
from scalewise.plan import Plan

PASSES = {"forward": 1, "backward": 3, "update": 7}
"""Times that a phase goes through memory as large as the parameters: backward reads weights, makes gradients, and adds
them; Adam reads four numbers and writes three for each."""
MOST_CHANGES = 64
"""From one device to another, that are looked at: more of them belong to many devices that work at once."""


def slowdown(device: Device, parameter_bytes: int, phase: str, seconds: float) -> float:
    """Of `seconds` of a phase, those that stream through memory slow down as that does, the others as multiplying."""
    if seconds <= 0:
        return 1.0
    streaming = PASSES.get(phase, 0) * parameter_bytes / (device.memory_GBps * 1e9)
    part = min(1.0, streaming / seconds)
    return part * device.beside_memory + (1 - part) * device.beside_compute


def lone_phases(plan: Plan) -> frozenset[str]:
    """What one device does while the others wait for it: the default device's update, that of a single server, or the
    passes of a model whose layers are on one device after the other."""
    at: dict[str, list[int]] = defaultdict(list)
    for number, operation in enumerate(plan.operations):
        if not (operation.send or operation.collective):
            at[operation.phase].append(number)
    return frozenset(phase for phase, numbers in at.items() if _never_at_once(plan, numbers))


def _never_at_once(plan: Plan, numbers: list[int]) -> bool:
    if any(plan.operations[number].count > 1 for number in numbers):
        return False
    changes = [
        (earlier, later)
        for earlier, later in pairwise(numbers)
        if plan.operations[earlier].rank != plan.operations[later].rank
    ]
    return len(changes) <= MOST_CHANGES and all(_follows(plan, later, earlier) for earlier, later in changes)


def _follows(plan: Plan, later: int, earlier: int) -> bool:
    """Whether one cannot begin before the other has ended."""
    seen, ahead = set[int](), [later]
    while ahead:
        number = ahead.pop()
        if number == earlier:
            return True
        if number > earlier and number not in seen:
            seen.add(number)
            ahead.extend(plan.operations[number].after)
    return False
