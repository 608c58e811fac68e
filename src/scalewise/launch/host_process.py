"""The command on one host: started for a scheduler's job, or by torchrun.

torchrun starts one process per device. On every host the first of them becomes the agent, which starts the ranks that
train (`host_agent`); the others are idle: they load no torch and wait for its exit code.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from time import monotonic, sleep
from typing import IO

from scalewise.core.errors import RunFailed
from scalewise.core.files import peer_user, write_atomically
from scalewise.launch.real_hosts import JOIN_SECONDS, LOST, Launch

_PR_SET_PDEATHSIG = 1
ADDRESS_SECONDS = 120.0
"""Longest wait for the address of the first host."""


@dataclass(frozen=True)
class HostPlace:
    """Position of a host in the job, and how it finds the first host."""

    number: int
    hosts: int
    devices: int
    address: str
    """Address of the first host."""
    port: int
    secret: str
    run: str
    """Name of the job."""
    attempt: int = 0
    """Number of restarts of the job."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables that torchrun would set for the first process of this host; the others are not needed."""
        return {
            "RANK": str(self.number * self.devices),
            "WORLD_SIZE": str(self.hosts * self.devices),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": str(self.devices),
            "GROUP_RANK": str(self.number),
            "GROUP_WORLD_SIZE": str(self.hosts),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_RUN_ID": self.run,
            "TORCHELASTIC_RESTART_COUNT": str(self.attempt),
            "SCALEWISE_CLUSTER_SECRET": self.secret,
        }


def start_command(
    arguments: Sequence[str],
    place: HostPlace,
    stdout: IO[bytes] | int | None = None,
    stderr: IO[bytes] | int | None = None,
    folder: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start `scalewise ARGUMENTS` on this host; it ends with this process.

    It has a process group of its own, because schedulers send signals to all processes of a job.
    """
    environment: Mapping[str, str] = {
        name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")
    } | place.environment
    return subprocess.Popen(
        [sys.executable, "-m", "scalewise", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port(address: str) -> int:
    with socket.create_server((address, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def announce_address(file: Path, address: str) -> tuple[str, int]:
    """Choose a port on this host, the first of the job, and write the address for the others."""
    port = free_port(address)
    write_atomically(file, json.dumps({"address": address, "port": port}).encode())
    return address, port


def wait_for_address(file: Path) -> tuple[str, int]:
    """Read the address of the first host from a file in a folder that all hosts share."""
    deadline = monotonic() + ADDRESS_SECONDS
    while not file.exists():
        if monotonic() > deadline:
            raise RunFailed(f"no {file} after {ADDRESS_SECONDS:g} s; all hosts of the job must share this folder")
        sleep(0.1)
    content = json.loads(file.read_text())
    return content["address"], content["port"]


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
                if peer_user(connection) != os.geteuid():
                    connection.close()
                    continue
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
    for address in _idle_addresses(launch):
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.bind(address)
        except OSError:  # another user has taken the name
            server.close()
            continue
        server.listen(launch.local_ranks)
        return ExitCodes(server)
    raise RunFailed("cannot open a socket for the ranks of torchrun: all its names are taken by other processes")


def _idle_addresses(launch: Launch) -> list[str]:
    """Return socket names without a file, unique per run and host: several, because other users can take a name."""
    name = f"\0scalewise-{launch.run}-{launch.port}-{launch.attempt}-{launch.host}"
    return [f"{name}-{number}" for number in range(8)]


def wait_for_agent(launch: Launch) -> int:
    """Wait until the agent of this host ends; return its exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    deadline = monotonic() + JOIN_SECONDS
    while monotonic() < deadline:
        for address in _idle_addresses(launch):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, suppress(OSError):
                connection.connect(address)
                if peer_user(connection) == os.geteuid():
                    code = connection.recv(1)
                    return code[0] if code else LOST
        sleep(0.1)
    return LOST
