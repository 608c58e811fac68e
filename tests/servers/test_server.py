"""A server and its workers over real lines, in threads of one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import pytest
import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from scalewise.servers.client import Client
from scalewise.servers.meeting import announce_end
from scalewise.servers.server import Server
from scalewise.session.rendezvous import LOOPBACK, open_store
from scalewise.strategies.pieces import pieces_of

SECONDS = 20.0


def _one_step(store: TCPStore, worker: int, gradient: float) -> float:
    """The weight after it."""
    model = nn.Linear(1, 1, bias=False)
    client = Client(model, store, worker, servers=1, piece_MB=1, timeout_seconds=SECONDS)
    client.begin(1)
    model(torch.tensor([gradient])).backward()
    client.finish_pushes()
    client.finish_pulls()
    client.leave()
    return float(model.weight.detach())


def test_a_synchronous_worker_that_is_early_is_not_updated_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = open_store(LOOPBACK, SECONDS)
    sgd = partial(torch.optim.SGD, lr=1.0)
    server = Server(0, pieces_of(1, 4, 1, 1), torch.zeros(1), sgd, max_staleness=0, workers=2)
    [slot] = server.slots
    arrive, arrived = slot.arrive, Event()

    def noted(*push: object) -> None:
        arrive(*push)  # type: ignore[arg-type]
        arrived.set()

    monkeypatch.setattr(slot, "arrive", noted)
    with ThreadPoolExecutor(3) as threads:
        try:
            serving = threads.submit(server.serve, store)
            early = threads.submit(_one_step, store, 0, 1.0)
            assert arrived.wait(SECONDS)
            assert slot.version == 0
            late = threads.submit(_one_step, store, 1, 2.0)
            assert (early.result(SECONDS), late.result(SECONDS)) == (-3.0, -3.0)
        finally:
            announce_end(store)
    assert serving.result().versions == 1
