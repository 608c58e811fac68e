"""Work for one device that says what it can do: multiply, stream through memory, start something small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

from scalewise.linking.operations import synchronize

STREAMED_BYTES = {"cpu": 48 * 2**20, "cuda": 512 * 2**20}
"""More than caches hold."""
SIDE = {"cpu": 384, "cuda": 4096}
"""Of the matrices; a core's fit its caches."""
TINY_CALLS = 200


@dataclass(frozen=True)
class Pace:
    """What one device did in a second."""

    TFLOPS: float
    memory_GBps: float
    """Read and written, as an optimizer does."""
    copy_GBps: float
    """Bytes that a copy moves from one place in its memory to another."""
    launch_us: float


def pace_of(device: torch.device, seconds: float) -> Pace:
    """Single precision, without tensor cores."""
    side = SIDE[device.type]
    one, other = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    elements = STREAMED_BYTES[device.type] // 4
    first, second = torch.ones(elements, device=device), torch.ones(elements, device=device)
    tiny = torch.ones(1, device=device)

    def start_many() -> None:
        for _ in range(TINY_CALLS):
            tiny.add_(1.0)

    multiplied = typical_seconds(lambda: torch.mm(one, other), device, seconds / 4)
    streamed = typical_seconds(lambda: first.add_(second, alpha=1e-6), device, seconds / 4)
    copied = typical_seconds(lambda: first.copy_(second), device, seconds / 4)
    started = typical_seconds(start_many, device, seconds / 4)
    return Pace(
        TFLOPS=2 * side**3 / multiplied / 1e12,
        memory_GBps=3 * 4 * elements / streamed / 1e9,
        copy_GBps=4 * elements / copied / 1e9,
        launch_us=started / TINY_CALLS * 1e6,
    )


def typical_seconds(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """The median of as many as fit the time, after two that warm up; three at least."""
    for _ in range(2):
        work()
    synchronize(device)
    taken: list[float] = []
    while len(taken) < 3 or sum(taken) < seconds:
        started = perf_counter()
        work()
        synchronize(device)
        taken.append(perf_counter() - started)
    return median(taken)
