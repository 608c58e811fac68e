"""A server and its workers over real lines, in threads of one process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Event
from threading import enumerate as enumerate_threads

import pytest
import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from scalewise.servers.client import Client
from scalewise.servers.line import Line, LineLost, pull_tag
from scalewise.servers.meeting import announce, announce_end
from scalewise.servers.server import Server
from scalewise.servers.slot import Push, Slot
from scalewise.session.rendezvous import LOOPBACK, open_store
from scalewise.strategies.pieces import pieces_of
from tests.servers import pushing_worker

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


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    return open_store(LOOPBACK, SECONDS)


def test_a_synchronous_worker_that_is_early_is_not_updated_without_the_others(
    monkeypatch: pytest.MonkeyPatch, store: TCPStore
) -> None:
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


class Through:
    """A message that has been waited for."""

    def wait(self) -> None: ...


def test_new_weights_that_arrive_during_backward_wait_until_it_is_over(store: TCPStore) -> None:
    """What backward has yet to do may read the old ones, where they were used without gradient too."""
    sgd = partial(torch.optim.SGD, lr=1.0)
    one_element_MB = 4e-6
    pieces = pieces_of(2, 4, 1, one_element_MB)
    server = Server(0, pieces, torch.ones(2), sgd, max_staleness=0, workers=1)
    seen: list[float] = []
    with ThreadPoolExecutor(1) as threads:
        try:
            threads.submit(server.serve, store)
            model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
            client = Client(model, store, 0, servers=1, piece_MB=one_element_MB, timeout_seconds=SECONDS)

            def when_the_last_layer_has_come_back(_: torch.Tensor) -> None:
                [(piece, arriving)] = client.receiving
                arriving.wait()
                client.receiving[0] = (piece, Through())
                seen.append(model[1].weight.item())  # type: ignore[operator]

            client.begin(1)
            inside = model[0](torch.tensor([2.0]))
            inside.register_hook(when_the_last_layer_has_come_back)
            model[1](inside).backward()
            client.finish_pushes()
            client.finish_pulls()
            client.leave()
        finally:
            announce_end(store)
    assert seen == [1.0]
    assert [weight.item() for weight in model.parameters()] == [-1.0, -1.0]


def _push(store: TCPStore) -> Client:
    """Worker 0 has sent its gradients, and is there as long as this is."""
    model = nn.Linear(1, 1, bias=False)
    client = Client(model, store, 0, servers=1, piece_MB=1, timeout_seconds=SECONDS)
    client.begin(1)
    model(torch.tensor([1.0])).backward()
    client.finish_pushes()
    return client


def _served_with(store: TCPStore, server: Server) -> None:
    """Serve one worker, which pushes and does not wait for an answer; raises what the server does."""
    with ThreadPoolExecutor(1) as threads:
        try:
            serving = threads.submit(server.serve, store)
            client = _push(store)
            serving.result(SECONDS)
            del client
        finally:
            announce_end(store)


def _server(optimizer: Callable[..., torch.optim.Optimizer]) -> Server:
    return Server(0, pieces_of(1, 4, 1, 1), torch.zeros(1), optimizer, max_staleness=None, workers=1)


class Broken(torch.optim.SGD):
    def step(self, closure: object = None) -> None:  # type: ignore[override] # noqa: ARG002
        raise RuntimeError("expected scalar type Half but found Float")


def test_an_error_of_the_optimizer_ends_the_server_and_is_no_lost_worker(store: TCPStore) -> None:
    server = _server(partial(Broken, lr=1.0))
    with pytest.raises(RuntimeError, match="expected scalar type Half but found Float"):
        _served_with(store, server)


def test_an_error_on_a_new_version_ends_the_server(store: TCPStore) -> None:
    server = _server(partial(torch.optim.SGD, lr=1.0))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    server.on_version = full
    with pytest.raises(OSError, match="No space left on device"):
        _served_with(store, server)


def test_synchronous_weights_are_not_updated_without_a_worker_that_is_gone(store: TCPStore) -> None:
    sgd = partial(torch.optim.SGD, lr=1.0)
    server = Server(0, pieces_of(1, 4, 1, 1), torch.zeros(1), sgd, max_staleness=0, workers=2)
    with ThreadPoolExecutor(1) as threads:
        try:
            serving = threads.submit(server.serve, store)
            stays = _push(store)
            place = announce(store, 1)
            goes = Line(store, f"{place}/0", "worker", SECONDS)
            goes.receive(torch.empty(1), pull_tag(0)).wait()
            del goes
            stays.leave()
        finally:
            announce_end(store)
    assert serving.result().versions == 0


def test_a_worker_that_said_it_would_come_and_died_does_not_hold_up_the_end(store: TCPStore) -> None:
    server = _server(partial(torch.optim.SGD, lr=1.0))
    with ThreadPoolExecutor(1) as threads:
        serving = threads.submit(server.serve, store)
        announce(store, 0)
        announce_end(store)
        assert serving.result(5.0).versions == 0


def test_a_worker_that_dies_in_the_middle_of_a_push_is_dropped(store: TCPStore) -> None:
    """Killed when some of its gradient has arrived: gloo does not tell who waits for the rest."""
    elements = 2**24
    sgd = partial(torch.optim.SGD, lr=1.0)
    pieces = pieces_of(elements, 4, 1, pushing_worker.PIECE_MB)
    server = Server(0, pieces, torch.zeros(elements), sgd, max_staleness=1, workers=2)
    line = [sys.executable, "-m", pushing_worker.__name__, str(store.port), str(elements)]
    with ThreadPoolExecutor(1) as threads, subprocess.Popen(line) as worker:
        serving = threads.submit(server.serve, store)
        try:
            while not server.attended:
                with suppress(subprocess.TimeoutExpired):
                    pytest.fail(f"ended by itself with {worker.wait(0.01)}")
            [attendance] = server.attended.values()
            inbox = attendance.inbox[0]
            while inbox[0] != 1 and worker.poll() is None:
                continue
            worker.kill()
            for thread in [each for each in enumerate_threads() if each.name == f"worker-{pushing_worker.WORKER}"]:
                thread.join(SECONDS)
            assert inbox[-1] != 1  # or it was not in the middle
            assert (server.attended, server.pushes, server.slots[0].holding) == ({}, 0, {})
        finally:
            worker.kill()
            announce_end(store)
        serving.result(SECONDS)


def test_what_was_held_for_a_worker_is_given_up_when_it_leaves(store: TCPStore) -> None:
    server = _server(partial(torch.optim.SGD, lr=1.0))
    with ThreadPoolExecutor(1) as threads:
        serving = threads.submit(server.serve, store)
        _one_step(store, 3, 1.0)
        for thread in [each for each in enumerate_threads() if each.name == "worker-3"]:
            thread.join(SECONDS)
        assert (server.attended, server.pushes) == ({}, 1)
        announce_end(store)
        serving.result(SECONDS)


def test_an_answer_finds_its_worker_also_if_it_leaves_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between what is pending and what is answered, another thread may look whether the worker can be forgotten."""
    server = _server(partial(torch.optim.SGD, lr=1.0))
    [slot] = server.slots
    slot.holding = {0: 0}
    sent: list[int] = []

    class There:
        worker = 7

        def send(self, _: Slot) -> None:
            sent.append(self.worker)

    monkeypatch.setitem(server.attended, 0, There())
    applying, left = Event(), Event()

    def leaves(_: int) -> None:
        applying.set()
        left.wait(0.2)  # for as long as it is let

    server.on_version = leaves
    with ThreadPoolExecutor(2) as threads:
        pushing = threads.submit(slot.arrive, 0, Push([torch.zeros(1)], 1), server._answer)
        assert applying.wait(SECONDS)
        leaving = threads.submit(server._leave, 0)
        leaving.add_done_callback(lambda _: left.set())
        pushing.result(SECONDS)
        leaving.result(SECONDS)
    assert sent == [7]
    assert server.attended == {}


def test_a_push_whose_worker_died_before_the_answer_is_applied_and_answered_all_the_same(store: TCPStore) -> None:
    """A bound holds the push back; whether gloo has noticed the death by the time of the answer is chance."""
    sgd = partial(torch.optim.SGD, lr=1.0)
    server = Server(0, pieces_of(1, 4, 1, 1), torch.zeros(1), sgd, max_staleness=1, workers=2)
    [slot] = server.slots

    class Gone:
        worker = 1

        def send(self, _: Slot) -> None:
            raise LineLost

    with ThreadPoolExecutor(1) as threads:
        serving = threads.submit(server.serve, store)
        server.attended[9] = Gone()  # type: ignore[assignment]
        slot.arrive(9, Push([torch.ones(1)], 1), server._answer)
        announce_end(store)
        served = serving.result(SECONDS)
    assert (served.applied, served.acknowledged) == (1, {1: 1})
