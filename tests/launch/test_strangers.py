"""Strangers connect to every port of running ranks, silent or with random bytes: the weights stay the same."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest
import torch
from safetensors.torch import load_file

import scalewise

MOST_PER_PORT = 20


@contextmanager
def strangers() -> Iterator[list[int]]:
    """Connect to the ports of all child processes while the block runs; yield the ports that were reached."""
    reached: list[int] = []
    over = Event()

    def connect() -> None:
        chance = random.Random(0)
        with ExitStack() as stack:
            while not over.is_set():
                for port in listening_ports():
                    if reached.count(port) < MOST_PER_PORT:
                        stranger = stack.enter_context(socket.socket())
                        stranger.settimeout(1)
                        with suppress(OSError):
                            stranger.connect(("127.0.0.1", port))
                            reached.append(port)
                            stranger.sendall(chance.randbytes(chance.choice([0, 4, 16, 4096])))

    thread = Thread(target=connect)
    thread.start()
    try:
        yield reached
    finally:
        over.set()
        thread.join()


def listening_ports() -> set[int]:
    ports = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            sockets = child.net_connections("tcp")
            ports |= {entry.laddr.port for entry in sockets if entry.status == psutil.CONN_LISTEN}
    return ports


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ring", "parameter-server"])
def test_strangers_do_not_disturb_a_run(strategy: str, tmp_path: Path) -> None:
    def train(name: str) -> dict[str, torch.Tensor]:
        path = tmp_path / name
        scalewise.train(
            "tests.tiny:float64",
            strategy=strategy,
            devices=2,
            device_kind="cpu",
            batch=4,
            samples=40,
            steps=200,
            checkpoint=path,
        )
        return load_file(path)

    undisturbed = train("undisturbed.safetensors")
    with strangers() as reached:
        disturbed = train("disturbed.safetensors")
    assert reached
    assert undisturbed.keys() == disturbed.keys()
    assert all(torch.equal(disturbed[name], value) for name, value in undisturbed.items())
