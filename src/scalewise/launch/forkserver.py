"""Start the forkserver that loads torch for all ranks; run clean-up scripts even if a process is killed."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from multiprocessing import forkserver, util
from pathlib import Path

from scalewise.core.errors import RunFailed, UserError


@contextmanager
def run_afterwards(script: str, if_killed: str = ":") -> Iterator[None]:
    """Run a shell script when the block ends or this process dies; if it dies, run `if_killed` first.

    The shell waits for the end of a pipe that only this process keeps open. It runs in its own terminal session, so
    that Ctrl-C does not reach it.
    """
    cleanup_shell = subprocess.Popen(
        ["/bin/sh", "-c", f'read -r ended; [ -n "$ended" ] || {{ {if_killed}; }}; {script}'],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        cleanup_shell.communicate(b"ended\n")


# Loaded once instead of in every rank: torch takes seconds, the first optimizer step loads torch._dynamo, and the
# training code takes a fifth of a second.
_PRELOAD = ["torch", "torch._dynamo", "scalewise.launch.rank_process", "scalewise.training.tasks"]
_NO_LEAKS = "ignore:resource_tracker:UserWarning"
_GPU = Path("/dev/nvidiactl")


def load_for_ranks() -> None:
    """Start the forkserver once per launcher, without waiting for it.

    Called before the launcher loads torch, so that both load it at the same time. Environment variables that are
    already set keep their values. Warnings of Python's resource tracker are off: it removes the semaphores of a killed
    launcher, and would print into a terminal that may belong to another command by then.
    """
    if _NO_LEAKS not in sys.warnoptions:
        sys.warnoptions.append(_NO_LEAKS)  # passed on to helper processes that Python starts
    _remove_socket_if_killed()
    multiprocessing.set_forkserver_preload(_PRELOAD)
    additions = {name: value for name, value in _environment().items() if name not in os.environ}
    os.environ.update(additions)
    # The forkserver is the parent of all ranks, so it has to outlive a SIGTERM to every process of the job.
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN) if in_main_thread else None
    try:
        forkserver.ensure_running()
    except OSError as error:
        raise start_error(error, util.get_temp_dir()) from error
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, before)
        for name in additions:
            del os.environ[name]


_MOST_SOCKET_PATH_BYTES = 107


def start_error(error: OSError, folder: str) -> RunFailed | UserError:
    """Error for processes that cannot be started because of the temporary folder or of semaphores in shared memory."""
    if len(os.fsencode(folder)) > _MOST_SOCKET_PATH_BYTES - len("/listener-12345678"):
        return UserError(
            f"the path of the temporary folder is too long for a socket ({folder}); set TMPDIR to a shorter one"
        )
    place = error.filename or f"{_SHARED_MEMORY} or {folder}"
    return RunFailed(f"cannot start processes: {place}: {error.strerror or error}")


_SHARED_MEMORY = "/dev/shm"


def _environment() -> dict[str, str]:
    """Environment variables of the forkserver and all ranks.

    TORCH_CPP_LOG_LEVEL hides warnings of torch's sockets that emulated hosts have no DNS name. OMP_WAIT_POLICY stops
    idle OpenMP threads of GPU ranks from spinning on cores that sockets and the GPU driver need: with spinning, a ring
    all-reduce of small gradients takes 1.5 times as long.
    """
    environment = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    if _GPU.exists():
        environment["OMP_WAIT_POLICY"] = "PASSIVE"
    return environment


@cache
def _remove_socket_if_killed() -> None:
    """Remove the folder of the forkserver's socket also after a kill; Python removes it at a normal exit only.

    Ranks and loader processes that end a moment after the launcher still use the folder.
    """
    stack = ExitStack()
    stack.enter_context(run_afterwards(":", if_killed=f"sleep 1; rm -rf {shlex.quote(util.get_temp_dir())}"))
    atexit.register(stack.close)
