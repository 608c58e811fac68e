"""Repeat work during which other programs used the processor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

import psutil

TRIES, DISTURBED = 3, 0.15
"""Number of tries of disturbed work, and the cores used by other programs from which work counts as disturbed."""
KERNEL = 2
"""Id of the process whose children are the kernel's threads."""
MPS_DAEMON = "nvidia-cuda-mps"
"""Prefix of the names of the daemons that serve slices."""
Result = TypeVar("Result")


class OtherPrograms:
    """Cores used by other programs during a `with` block: `with OtherPrograms() as others: ...; others.cores`."""

    cores = 0.0

    def __enter__(self) -> OtherPrograms:
        self.started, self.before = perf_counter(), _cpu_seconds_of_others()
        return self

    def __exit__(self, *_: object) -> None:
        after = _cpu_seconds_of_others()
        used = sum(seconds - self.before.get(pid, 0.0) for pid, seconds in after.items())
        self.cores = used / (perf_counter() - self.started)

    @property
    def quiet(self) -> bool:
        return self.cores < DISTURBED


def _cpu_seconds_of_others() -> dict[int, float]:
    """CPU seconds by process id, without this process, its descendants, the kernel's threads and MPS daemons."""
    own = {os.getpid(), KERNEL, *(child.pid for child in psutil.Process().children(recursive=True))}
    cpu_seconds = {}
    for process in psutil.process_iter(["pid", "ppid", "name", "cpu_times"]):
        info = process.info
        foreign = info["pid"] not in own and info["ppid"] != KERNEL and not (info["name"] or "").startswith(MPS_DAEMON)
        if foreign and info["cpu_times"]:
            cpu_seconds[info["pid"]] = info["cpu_times"].user + info["cpu_times"].system
    return cpu_seconds


def undisturbed(work: Callable[[], Result]) -> Result:
    """Return the result of the work, repeated up to TRIES times if other programs disturbed it."""
    for _ in range(TRIES):
        with OtherPrograms() as others:
            result = work()
        if others.quiet:
            return result
    say(f"  disturbed: other programs used {others.cores:.2f} cores")
    return result


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
