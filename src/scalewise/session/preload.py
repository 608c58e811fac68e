"""The process that ranks are forked from, with torch loaded once for all of them."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shlex
import sys
from contextlib import ExitStack
from functools import cache
from multiprocessing import forkserver, util

from scalewise.session.janitor import afterwards

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
    _sweep_up_if_killed()
    multiprocessing.set_forkserver_preload(_PRELOAD)
    asked_for = os.environ.get(_LOG_LEVEL)
    os.environ[_LOG_LEVEL] = asked_for or "ERROR"
    try:
        forkserver.ensure_running()
    finally:
        if asked_for is None:
            del os.environ[_LOG_LEVEL]


@cache
def _sweep_up_if_killed() -> None:
    """The forkserver's socket lives there; Python removes it at exit, but not when it is killed."""
    held = ExitStack()
    held.enter_context(afterwards(":", if_killed=f"rm -rf {shlex.quote(util.get_temp_dir())}"))
    atexit.register(held.close)
