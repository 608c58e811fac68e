"""Processes that end with the one they work for, however that ends."""

from __future__ import annotations

import os
import signal
from multiprocessing import forkserver
from typing import Any

from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]


def end_with_owner() -> None:
    """Have the kernel kill this process when the one that asked for it is gone.

    The parent of a process that was asked of a forkserver is the forkserver, which ends when nobody holds its life line
    any more. Its children inherit that line from the owner: letting go of it leaves the owner as the only holder. The
    order matters: the forkserver cannot end, and its end cannot be missed, before the line is let go.
    """
    _prctl_pr_set_pdeathsig(signal.SIGKILL)
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:  # forked by an owner that never had a forkserver
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
