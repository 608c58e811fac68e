"""Server 0 collects the state of all servers; the servers run in threads of one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from scalewise.launch.elastic_agent import LOOPBACK
from scalewise.launch.store import open_tcp_store
from scalewise.parameter_server.checkpoints import WEIGHTS, WHEN_OVER, Archive
from scalewise.parameter_server.client import announce_end
from scalewise.parameter_server.server import Push, Server
from scalewise.runtime.optimizers import state_after_a_step
from scalewise.strategies.server_plan import Piece, pieces_of

SECONDS = 20.0
ADAM = partial(torch.optim.Adam, lr=1.0)
KINDS = state_after_a_step(ADAM, torch.float32)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    return open_tcp_store(LOOPBACK, SECONDS)


def _server(number: int, pieces: tuple[Piece, ...]) -> Server:
    return Server(number, pieces, torch.zeros(pieces[-1].stop), ADAM, max_staleness=1, workers=2)


def test_the_final_state_is_collected_from_servers_with_different_versions(store: TCPStore) -> None:
    pieces = pieces_of(4, 4, 2, 1)
    first, second = _server(0, pieces), _server(1, pieces)
    for gradient in (1.0, 2.0):
        first.slots[0].arrive(0, Push([torch.full((2,), gradient)], 1), lambda *_: None)
    assert (first.version, second.version) == (2, 0)
    with ThreadPoolExecutor(2) as threads:
        other = threads.submit(Archive, second, pieces, KINDS, store)
        archive = Archive(first, pieces, KINDS, store)
        other.result(SECONDS)
        collected = threads.submit(archive.collect, WHEN_OVER)
        announce_end(store)
        second.serve(store)
        whole, scalars = collected.result(SECONDS)
    archive.close()
    assert whole[WEIGHTS].tolist() == [*first.weights[0].tolist(), 0.0, 0.0]
    assert whole["exp_avg"].tolist() == pytest.approx([0.29, 0.29, 0.0, 0.0])
    assert float(scalars["step"]) == 2


def test_a_server_without_pieces_is_not_contacted(store: TCPStore) -> None:
    pieces = pieces_of(1, 4, 2, 1)
    assert Archive(_server(1, pieces), pieces, KINDS, store).connections == {}
    archive = Archive(_server(0, pieces), pieces, KINDS, store)
    whole, scalars = archive.collect(WHEN_OVER)
    assert (whole[WEIGHTS].tolist(), float(scalars["step"])) == ([0.0], 0.0)
    archive.close()
