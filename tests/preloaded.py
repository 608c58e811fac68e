"""Commands that start as forks of a process that has imported torch, because starting Python with torch takes seconds.

Only a command's own process and its forkserver are forks. Everything else is as usual: signals, exit codes, streams,
environment, ranks. `tests.command.start` starts a new Python process.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing import forkserver, util
from typing import Any

IMPORTED = (
    "torch._dynamo",
    "scalewise.launch.rank_process",
    "scalewise.launch.session",
    "scalewise.training.tasks",
    "scalewise.training.train",
    "scalewise.sweep.measure",
    "scalewise.cli.app",
)
_LARGEST_REQUEST = 128 * 1024


@dataclass(frozen=True)
class _Request:
    """A command to start; four file descriptors follow: its standard streams, and a pipe for its exit status."""

    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    new_session: bool


class PreloadedCommand(subprocess.Popen[str]):
    """Command of a module (`python -m module`), used like any other `subprocess.Popen`."""

    def __init__(self, module: str, arguments: Sequence[str], **options: Any) -> None:
        self._module = module
        super().__init__(list(arguments), text=True, **options)

    def _execute_child(self, args: list[str], *options: Any) -> None:  # called by subprocess.Popen
        environment, streams, new_session = options[5], options[9:15], options[20]
        ours = streams[0], streams[3], streams[5]
        descriptors = [number if stream == -1 else stream for number, stream in enumerate(ours)]
        request = _Request(self._module, tuple(args), dict(environment or os.environ), new_session)
        self._status, status = os.pipe()
        server = _server()
        socket.send_fds(server, [pickle.dumps(request)], [*descriptors, status])
        os.close(status)
        self.pid = int(server.recv(32))
        self._child_created = True
        self._close_pipe_fds(*streams)  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        status = os.read(self._status, 32)
        os.close(self._status)
        return self.pid, int(status)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


@cache
def _server() -> socket.socket:
    """Start the process from which commands are forked; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _LARGEST_REQUEST)
    search_path = os.pathsep.join(path for path in sys.path if path)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.preloaded", str(theirs.fileno())],
        env={**os.environ, "PYTHONPATH": search_path},
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    theirs.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def _serve(requests: socket.socket) -> _Request:
    """Fork a process for every request and report its exit status; only the forks return, with their request."""
    ended, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    statuses: dict[int, int] = {}
    while True:
        ready = select.select([requests.fileno(), ended], [], [])[0]
        if ended in ready:
            os.read(ended, 4096)
            _report_ended(statuses)
        if requests.fileno() in ready:
            message, descriptors, *_ = socket.recv_fds(requests, _LARGEST_REQUEST, 4)
            if not message:
                os._exit(0)
            if not (pid := os.fork()):
                _take_over(descriptors[:3])
                return pickle.loads(message)  # type: ignore[no-any-return]
            *streams, statuses[pid] = descriptors
            for stream in streams:
                os.close(stream)
            requests.send(str(pid).encode())


def _report_ended(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            break
        descriptor = statuses.pop(pid)
        with suppress(BrokenPipeError):  # nobody waits for it
            os.write(descriptor, str(status).encode())
        os.close(descriptor)


def _take_over(streams: Sequence[int]) -> None:
    """Give a fork its standard streams and the default handling of signals, and close everything else."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for number, (name, mode, errors) in enumerate(
        (("stdin", "r", "strict"), ("stdout", "w", "strict"), ("stderr", "w", "backslashreplace"))
    ):
        raw = open(number, f"{mode}b", closefd=False)  # noqa: SIM115 - open to the end
        by_line = name == "stderr" or os.isatty(number)
        setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=by_line))


def _fork_forkserver() -> None:
    """Start this process's forkserver as a fork, which has imported everything already."""
    helpers: Any = util
    command, start = os.getpid(), helpers.spawnv_passfds

    def spawn(path: bytes, arguments: list[str], descriptors: Sequence[int]) -> int:
        if os.getpid() != command or "multiprocessing.forkserver" not in arguments[-1]:
            pid: int = start(path, arguments, descriptors)
            return pid
        if pid := os.fork():
            return pid
        try:
            first = 3
            for kept in (*sorted(descriptors), os.sysconf("SC_OPEN_MAX")):
                os.closerange(first, kept)
                first = kept + 1
            server: Any = forkserver
            server._forkserver.__init__()  # its lock is held while it starts a process
            exec(arguments[-1], {})
        finally:
            os._exit(0)

    helpers.spawnv_passfds = spawn


def _run(request: _Request) -> None:
    if request.new_session:
        os.setsid()
    os.environ.clear()
    os.environ.update(request.environment)
    tempfile.tempdir = None  # may be another one in this environment
    _fork_forkserver()
    sys.argv = [request.module, *request.arguments]
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))
