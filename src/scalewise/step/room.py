"""How much memory a run may take on its device: all there is, or what SCALEWISE_MEMORY_LIMIT_GB allows."""

from __future__ import annotations

import importlib
import math
import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import torch

from scalewise.errors import UserError
from scalewise.step.allocator import keep_freed_memory, return_freed_memory

MEMORY_LIMIT = "SCALEWISE_MEMORY_LIMIT_GB"
"""Environment variable: caps the memory of each device, to rehearse a smaller one."""


FOR_THREADS_BYTES = 2**24
"""Stacks of threads that are started later are none of the device's."""


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


def free_bytes(device: torch.device) -> int:
    """That this process may still take of a GPU's memory."""
    free = int(torch.cuda.mem_get_info(device)[0])
    limit = memory_limit_bytes()
    return free if limit is None else max(0, min(free, limit - torch.cuda.memory_allocated(device)))


class Room:
    """Of a CPU rank the kernel refuses what goes beyond (RLIMIT_DATA); a GPU's own allocator sees to it by itself.

    Models are made on the host and then moved to their device, or only a part of them. The host of a CPU rank is the
    same process: so the cap is lifted while an engine is built, and what it then holds must fit. Samples, memory that
    ranks share, and programs that are loaded are the host's too. Freed memory is given back at once, because it would
    count; that costs a capped run some page faults.
    """

    def __init__(self, device: torch.device, strategy: str) -> None:
        limit = memory_limit_bytes()
        self.limit_bytes = limit if device.type == "cpu" else None
        self.strategy = strategy
        self.before = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    def __enter__(self) -> Room:
        if self.limit_bytes is not None:
            self.before = resource.getrlimit(resource.RLIMIT_DATA)
            importlib.import_module("torch._dynamo")  # which the first update would load, into the device's memory
            return_freed_memory()
        return self

    @contextmanager
    def building(self, held: Callable[[], int]) -> Iterator[None]:
        """`held`, asked once it is built, tells what tensors take since before."""
        yield
        stays = held()
        if self.limit_bytes is None:
            return
        if stays > self.limit_bytes:
            raise DeviceFull(
                f"what is to stay on the device takes {stays / 1e9:.3g} GB, and {MEMORY_LIMIT} allows "
                f"{self.limit_bytes / 1e9:g}"
            )
        most = _data_bytes() + self.limit_bytes - stays + FOR_THREADS_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (most, self.before[1]))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_DATA, self.before)
            keep_freed_memory()
        if isinstance(error, Exception):
            error.strategy = self.strategy  # type: ignore[attr-defined]  # whoever tells of it suggests another


def _data_bytes() -> int:
    """Of this process's own memory, as the kernel counts it for the cap."""
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
