"""How much longer a device takes while its siblings work: cores of one processor share memory and its bandwidth."""

from __future__ import annotations

from collections import defaultdict

from scalewise.clusters.cluster import Device
from scalewise.plan import Plan

PASSES = {"forward": 1, "backward": 3, "update": 7}
"""Times that a phase goes through memory as large as the parameters: backward reads weights, makes gradients, and adds
them; Adam reads four numbers and writes three for each."""


def slowdown(device: Device, parameter_bytes: int, phase: str, seconds: float) -> float:
    """Of `seconds` of a phase, those that stream through memory slow down as that does, the others as multiplying."""
    if seconds <= 0:
        return 1.0
    streaming = PASSES.get(phase, 0) * parameter_bytes / (device.memory_GBps * 1e9)
    part = min(1.0, streaming / seconds)
    return part * device.beside_memory + (1 - part) * device.beside_compute


def lone_phases(plan: Plan) -> frozenset[str]:
    """What one device does while the others wait for it: the default device's update, or that of a single server."""
    ranks: dict[str, set[int]] = defaultdict(set)
    for operation in plan.operations:
        if not (operation.send or operation.collective):
            ranks[operation.phase] |= {operation.rank, operation.rank + operation.count - 1}
    return frozenset(phase for phase, at in ranks.items() if len(at) == 1)
