"""What other programs take of the processor meanwhile: work that they disturbed is done again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

import psutil

TRIES, DISTURBED = 3, 0.15
"""How often what was disturbed is done again, and from how many cores of other programs on it counts as that."""
KERNEL = 2
"""The process whose children are the kernel's threads."""
SLICES = "nvidia-cuda-mps"
"""How the daemons' names begin that serve the slices."""
Result = TypeVar("Result")


class Others:
    """In cores: `with Others() as others: ...; others.cores`."""

    cores = 0.0

    def __enter__(self) -> Others:
        self.started, self.before = perf_counter(), _seconds_of_others()
        return self

    def __exit__(self, *_: object) -> None:
        after = _seconds_of_others()
        taken = sum(seconds - self.before.get(pid, 0.0) for pid, seconds in after.items())
        self.cores = taken / (perf_counter() - self.started)

    @property
    def quiet(self) -> bool:
        return self.cores < DISTURBED


def _seconds_of_others() -> dict[int, float]:
    """By process; those of this one, its descendants and the kernel are left out."""
    own = {os.getpid(), KERNEL, *(child.pid for child in psutil.Process().children(recursive=True))}
    taken = {}
    for process in psutil.process_iter(["pid", "ppid", "name", "cpu_times"]):
        about = process.info
        foreign = about["pid"] not in own and about["ppid"] != KERNEL and not (about["name"] or "").startswith(SLICES)
        if foreign and about["cpu_times"]:
            taken[about["pid"]] = about["cpu_times"].user + about["cpu_times"].system
    return taken


def undisturbed(work: Callable[[], Result]) -> Result:
    """The work's result, done again while other programs run beside it."""
    for _ in range(TRIES):
        with Others() as others:
            result = work()
        if others.quiet:
            return result
    say(f"  other programs took {others.cores:.2f} cores meanwhile")
    return result


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
