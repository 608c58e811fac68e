"""What glibc does with memory that a step frees: keeps it for the next, or gives it back to the kernel."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
NEVER, SMALL, GLIBC_MMAP_MAX = -1, 2**16, 65536


def keep_freed_memory() -> None:
    """Tell glibc not to give blocks back, however large: a 48 MB gradient else costs 12,000 page faults at every step.

    The linear model at batch 10 trains twice as fast on a CPU core for it (benchmarks/loop.py).
    """
    _set({M_MMAP_MAX: 0, M_TRIM_THRESHOLD: NEVER})


def return_freed_memory() -> None:
    """Tell glibc to unmap every block but the small ones when it is freed."""
    _set({M_MMAP_MAX: GLIBC_MMAP_MAX, M_MMAP_THRESHOLD: SMALL, M_TRIM_THRESHOLD: SMALL})


def _set(options: dict[int, int]) -> None:
    library = _library()
    if library is not None and hasattr(library, "mallopt"):  # musl has none, and needs none
        for option, value in options.items():
            library.mallopt(option, value)


@cache
def _library() -> ctypes.CDLL | None:
    name = ctypes.util.find_library("c") if sys.platform == "linux" else None
    return ctypes.CDLL(name) if name else None
