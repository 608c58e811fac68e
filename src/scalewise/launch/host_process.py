"""The command on one host of a scheduler's job."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from scalewise.core.errors import RunFailed
from scalewise.core.files import write_atomically

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
