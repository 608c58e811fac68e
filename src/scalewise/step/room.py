"""How much memory a run may take on its device: all there is, or what SCALEWISE_MEMORY_LIMIT_GB allows."""

from __future__ import annotations

import math
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import torch

from scalewise.errors import UserError
from scalewise.step.allocator import free_bytes, keep_freed_memory, return_freed_memory

MEMORY_LIMIT = "SCALEWISE_MEMORY_LIMIT_GB"
"""Environment variable: caps the memory of each device, to rehearse a smaller one."""


class DeviceFull(MemoryError):
    """What a rank must hold does not fit its device."""


def memory_limit_bytes() -> int | None:
    """As the environment says; None if it says nothing."""
    text = os.environ.get(MEMORY_LIMIT)
    if text is None:
        return None
    try:
        limit_GB = float(text)
    except ValueError:
        limit_GB = math.nan
    if not 0 < limit_GB < math.inf:
        raise UserError(f"{MEMORY_LIMIT} is '{text}'; it must be a number of GB above 0")
    return round(limit_GB * 1e9)


class Room:
    """Of a CPU rank the kernel refuses what goes beyond (RLIMIT_DATA); a GPU's own allocator sees to it by itself.

    Models are made on the host and then moved to their device, or only a part of them. The host of a CPU rank is the
    same process: so the cap is lifted while an engine is built, and what is left when it stands must fit. Samples and
    memory that ranks share are the host's too.
    """

    def __init__(self, device: torch.device, strategy: str) -> None:
        limit = memory_limit_bytes()
        self.limit_bytes = limit if device.type == "cpu" else None
        self.strategy = strategy
        self.before = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        self.taken_before = 0

    def __enter__(self) -> Room:
        if self.limit_bytes is not None:
            self.before = resource.getrlimit(resource.RLIMIT_DATA)
            self.taken_before = _taken_bytes()
        return self

    @contextmanager
    def building(self) -> Iterator[None]:
        if self.limit_bytes is None:
            yield
            return
        return_freed_memory()  # else what a part of the model was cut from would be held for later, and count
        try:
            yield
        finally:
            keep_freed_memory()
        taken = _taken_bytes() - self.taken_before
        if taken > self.limit_bytes:
            raise DeviceFull(
                f"what is to stay on the device takes {taken / 1e9:.3g} GB, and {MEMORY_LIMIT} allows "
                f"{self.limit_bytes / 1e9:g}"
            )
        resource.setrlimit(resource.RLIMIT_DATA, (self.taken_before + self.limit_bytes, self.before[1]))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_DATA, self.before)
        if isinstance(error, Exception):
            error.strategy = self.strategy  # type: ignore[attr-defined]  # whoever tells of it suggests another


def _taken_bytes() -> int:
    """Of this process's own memory, as the kernel counts it for the cap, without what lies free in it."""
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 - free_bytes()
