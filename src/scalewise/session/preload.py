"""The process that ranks are forked from, with torch loaded once for all of them."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import forkserver

# torch itself takes seconds to load, an optimizer's first step loads torch._dynamo, and what trains takes a fifth of a
# second: once, not in every rank.
_PRELOAD = ["torch", "torch._dynamo", "scalewise.session.rank", "scalewise.training.task", "scalewise.training.serving"]
_NO_LEAKS = "ignore:resource_tracker:UserWarning"
_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"


def load_for_ranks() -> None:
    """Starts it, once per launcher, and returns at once: called before the launcher loads torch, both load together.

    It reads its environment as it starts. Below errors, torch's sockets complain that rehearsed hosts have no name in
    the DNS. The tracker that it starts clears away the semaphores of a launcher that was killed; it need not say so in
    a terminal that is somebody else's.
    """
    if _NO_LEAKS not in sys.warnoptions:
        sys.warnoptions.append(_NO_LEAKS)  # handed to processes that Python starts for itself
    multiprocessing.set_forkserver_preload(_PRELOAD)
    asked_for = os.environ.get(_LOG_LEVEL)
    os.environ[_LOG_LEVEL] = asked_for or "ERROR"
    try:
        forkserver.ensure_running()
    finally:
        if asked_for is None:
            del os.environ[_LOG_LEVEL]
