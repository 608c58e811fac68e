"""Which cores a cpu rank runs on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def cores_of(rank: int, cores_per_device: int, order: Sequence[int]) -> list[int]:
    """Rank after rank takes the next cores, and starts over when there are no more."""
    first = rank * cores_per_device
    return sorted({order[(first + i) % len(order)] for i in range(cores_per_device)})


def core_order(allowed: Iterable[int]) -> list[int]:
    """Allowed cores, one hardware thread of every core first: two threads of one core are not two devices."""
    return spread({core: _siblings(core) for core in allowed})


def spread(siblings: dict[int, str]) -> list[int]:
    """{0: '0,2', 1: '1,3', 2: '0,2', 3: '1,3'} -> [0, 1, 2, 3]; siblings are whatever names the physical core."""
    seen: dict[str, int] = {}
    turns: list[tuple[int, int]] = []
    for core in sorted(siblings):
        turn = seen.get(siblings[core], 0)
        seen[siblings[core]] = turn + 1
        turns.append((turn, core))
    return [core for _, core in sorted(turns)]


def pin(cores: Sequence[int]) -> None:
    """The calling thread and those it starts from now on; only Linux can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def allowed_cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _siblings(core: int) -> str:
    try:
        return Path(_SIBLINGS.format(core)).read_text().strip()
    except OSError:
        return str(core)
