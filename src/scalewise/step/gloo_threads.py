"""gloo's own threads beside the one that computes, where both have a core between them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

WATCHER = "gloo_tcp_loop"
"""gloo's name for the thread that watches a group's sockets."""


def let_senders_finish() -> None:
    """To be called when a group has been made: its thread then starts when who writes to a socket has done so.

    It wakes as soon as a peer's bytes arrive, in the middle of a write too. It finds the connection locked, and asks
    again and again until the kernel's next tick gives the core back to the writer: 4 ms, for a write of half a
    millisecond. As SCHED_BATCH it does not displace what runs.
    """
    tasks = Path("/proc/self/task")
    if not hasattr(os, "SCHED_BATCH") or not tasks.exists():
        return
    for task in tasks.iterdir():
        with suppress(OSError):  # threads come and go
            if (task / "comm").read_text().strip() == WATCHER:
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))
