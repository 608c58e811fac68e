"""Settings of a training process: memory allocator, priority of gloo threads, end with its parent."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import signal
import sys
from contextlib import suppress
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
NEVER, SMALL, GLIBC_MMAP_MAX = -1, 2**14, 65536


def keep_freed_memory() -> None:
    """Make glibc keep freed blocks of any size; otherwise a 48 MB gradient costs 12,000 page faults in every step.

    The linear model at batch 10 then trains twice as fast on a CPU core (benchmarks/loop.py).
    """
    _set({M_MMAP_MAX: 0, M_TRIM_THRESHOLD: NEVER})


def map_large_blocks() -> None:
    """Tell glibc to map every block but the small ones separately, and to unmap it when it is freed."""
    _set({M_MMAP_MAX: GLIBC_MMAP_MAX, M_MMAP_THRESHOLD: SMALL})


def return_freed_memory() -> None:
    """Make glibc return all freed memory to the kernel."""
    map_large_blocks()
    _set({M_TRIM_THRESHOLD: SMALL})


def _set(options: dict[int, int]) -> None:
    library = _library()
    if library is not None and hasattr(library, "mallopt"):  # musl has no mallopt and needs none
        for option, value in options.items():
            library.mallopt(option, value)


@cache
def _library() -> ctypes.CDLL | None:
    name = ctypes.util.find_library("c") if sys.platform == "linux" else None
    return ctypes.CDLL(name) if name else None


GLOO_THREAD = "gloo_tcp_loop"
"""Name of gloo's thread that polls the sockets of a process group."""


def let_senders_finish() -> None:
    """Give gloo's socket thread the policy SCHED_BATCH, so that it does not interrupt a thread that writes to a socket.

    Call this after each process group is created. By default the socket thread wakes as soon as bytes arrive, also
    during a write. It then finds the connection locked and spins until the kernel's next tick gives the core back to
    the writer: 4 ms for a write of half a millisecond.
    """
    tasks = Path("/proc/self/task")
    if not hasattr(os, "SCHED_BATCH") or not tasks.exists():
        return
    for task in tasks.iterdir():
        with suppress(OSError):  # the thread has ended
            if (task / "comm").read_text().strip() == GLOO_THREAD:
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))


def end_with_owner() -> None:
    """Have the kernel kill this process when the process that requested it ends.

    The parent of a process started by a forkserver is the forkserver. A forkserver ends when its "alive" descriptor is
    closed in all processes. Children inherit that descriptor, so it is closed here, which leaves only the owner's. The
    death signal is set first, because the forkserver cannot end before this process closes the descriptor.
    """
    _prctl_pr_set_pdeathsig(signal.SIGKILL)
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:  # None if forked by an owner without a forkserver
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
