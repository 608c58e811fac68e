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
PIECE_SECONDS = 0.02
"""Of work between two looks at the clock, as long as a short training step."""


@dataclass(frozen=True)
class Pace:
    """What one device did in a second."""

    TFLOPS: float
    memory_GBps: float
    """Read and written, as an optimizer does."""
    copy_GBps: float
    """Bytes that a copy moves from one place in its memory to another."""
    launch_us: float


def alone(seconds: float) -> float:
    return seconds


def pace_of(device: torch.device, seconds: float, in_step: Callable[[float], float] = alone) -> Pace:
    """Single precision, without tensor cores. `in_step`: of ranks side by side, the slowest's seconds."""
    side = SIDE[device.type]
    one, other = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    elements = STREAMED_BYTES[device.type] // 4
    first, second = torch.ones(elements, device=device), torch.ones(elements, device=device)
    tiny = torch.ones(1, device=device)

    def start_many() -> None:
        for _ in range(TINY_CALLS):
            tiny.add_(1.0)

    multiplied = typical_seconds(lambda: torch.mm(one, other), device, seconds / 4, in_step)
    copied = typical_seconds(lambda: first.copy_(second), device, seconds / 4, in_step)
    started = typical_seconds(start_many, device, seconds / 4, in_step)
    return Pace(
        TFLOPS=2 * side**3 / multiplied / 1e12,
        memory_GBps=streamed_GBps(device, seconds / 4, in_step),
        copy_GBps=4 * elements / copied / 1e9,
        launch_us=started / TINY_CALLS * 1e6,
    )


def streamed_GBps(
    device: torch.device, seconds: float, in_step: Callable[[float], float] = alone, bytes: int | None = None
) -> float:
    """Read and written, as an optimizer does."""
    elements = (bytes or STREAMED_BYTES[device.type]) // 4
    first, second = torch.ones(elements, device=device), torch.ones(elements, device=device)
    streamed = typical_seconds(lambda: first.add_(second, alpha=1e-6), device, seconds, in_step)
    return 3 * first.nbytes / streamed / 1e9


def typical_seconds(
    work: Callable[[], object], device: torch.device, seconds: float, in_step: Callable[[float], float] = alone
) -> float:
    """The median of as many pieces as fit the time, after two calls that warm up; three at least."""

    def taken(times: int) -> float:
        synchronize(device)
        started = perf_counter()
        for _ in range(times):
            work()
        synchronize(device)
        return in_step((perf_counter() - started) / times)

    taken(1)
    times = max(1, round(PIECE_SECONDS / taken(1)))
    pieces: list[float] = []
    while len(pieces) < 3 or times * sum(pieces) < seconds:
        pieces.append(taken(times))
    return median(pieces)
