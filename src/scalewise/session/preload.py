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
from pathlib import Path

from scalewise.session.janitor import afterwards

# torch itself takes seconds to load, an optimizer's first step loads torch._dynamo, and what trains takes a fifth of a
# second: once, not in every rank.
_PRELOAD = ["torch", "torch._dynamo", "scalewise.session.rank", "scalewise.training.task", "scalewise.training.serving"]
_NO_LEAKS = "ignore:resource_tracker:UserWarning"
_GPU = Path("/dev/nvidiactl")


def load_for_ranks() -> None:
    """Starts it, once per launcher, and returns at once: called before the launcher loads torch, both load together.

    It reads its environment as it starts; what is set there already stays. The tracker that it starts clears away the
    semaphores of a launcher that was killed; it need not say so in a terminal that is somebody else's.
    """
    if _NO_LEAKS not in sys.warnoptions:
        sys.warnoptions.append(_NO_LEAKS)  # handed to processes that Python starts for itself
    _sweep_up_if_killed()
    multiprocessing.set_forkserver_preload(_PRELOAD)
    added = {name: value for name, value in _environment().items() if name not in os.environ}
    os.environ.update(added)
    try:
        forkserver.ensure_running()
    finally:
        for name in added:
            del os.environ[name]


def _environment() -> dict[str, str]:
    """Below errors, torch's sockets complain that rehearsed hosts have no name in the DNS.

    A GPU's rank adds up gradients on the host now and then. Threads that spin until the next time hold the cores that
    sockets and the GPU's driver need: with them a ring of small gradients takes half as long again.
    """
    environment = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    if _GPU.exists():
        environment["OMP_WAIT_POLICY"] = "PASSIVE"
    return environment


@cache
def _sweep_up_if_killed() -> None:
    """The forkserver's socket lives there; Python removes it at exit, but not when it is killed."""
    held = ExitStack()
    held.enter_context(afterwards(":", if_killed=f"rm -rf {shlex.quote(util.get_temp_dir())}"))
    atexit.register(held.close)
