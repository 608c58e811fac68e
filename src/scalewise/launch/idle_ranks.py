"""Start of a command under torchrun, and its idle ranks, which load no torch.

torchrun starts one process per device. On every host the first of them becomes the agent, which starts the ranks that
train (`host_agent`); the others wait for its exit code.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread
from time import monotonic, sleep

from scalewise.launch.real_hosts import JOIN_SECONDS, LOST, Launch


def run_on_hosts(command: Callable[[], None]) -> None:
    """Run the command on the first host, with ranks on all hosts; other processes take part until it ends, and exit."""
    launch = Launch.from_environment()
    if launch.local_rank:
        sys.exit(wait_for_agent(launch))
    from scalewise.launch.host_agent import command_or_agent

    with serve_idle_ranks(launch) as exit_codes:
        code = LOST
        try:
            command_or_agent(launch, command)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else LOST
            raise
        finally:
            exit_codes.announce(code)


class ExitCodes:
    """Passes the exit code of the agent to the idle ranks of its host."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._waiting: list[socket.socket] = []
        self._code: int | None = None
        self._lock = Lock()
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with self._lock:
                    self._waiting.append(connection)

    def announce(self, code: int) -> None:
        with self._lock:
            for connection in self._waiting:
                with suppress(OSError):
                    connection.sendall(bytes([code & 0xFF]))
                connection.close()

    def __enter__(self) -> ExitCodes:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()


def serve_idle_ranks(launch: Launch) -> ExitCodes:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(_idle_address(launch))
    server.listen(launch.local_ranks)
    return ExitCodes(server)


def _idle_address(launch: Launch) -> str:
    """Return a socket name without a file, unique per run and host."""
    return f"\0scalewise-{launch.run}-{launch.port}-{launch.attempt}-{launch.host}"


def wait_for_agent(launch: Launch) -> int:
    """Wait until the agent of this host ends; return its exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    deadline = monotonic() + JOIN_SECONDS
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        while True:
            try:
                connection.connect(_idle_address(launch))
                break
            except OSError:
                if monotonic() > deadline:
                    return LOST
                sleep(0.1)
        code = connection.recv(1)
    return code[0] if code else LOST
