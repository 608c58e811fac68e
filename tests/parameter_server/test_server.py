"""A server and its workers over real connections, in threads of one process."""

from __future__ import annotations

import subprocess
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

from scalewise.launch.elastic_agent import LOOPBACK
from scalewise.launch.store import open_tcp_store
from scalewise.parameter_server.client import Client, ConnectionLost, ServerConnection, announce, announce_end, pull_tag
from scalewise.parameter_server.server import Push, Server, Slot
from scalewise.strategies.server_plan import pieces_of
from tests.command import fork
from tests.parameter_server import pushing_worker

SECONDS = 20.0


def _one_step(store: TCPStore, worker: int, gradient: float) -> float:
    """Train one step as this worker and return the new weight."""
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
    return open_tcp_store(LOOPBACK, SECONDS)


def test_an_early_synchronous_push_waits_for_the_other_workers(
    monkeypatch: pytest.MonkeyPatch, store: TCPStore
) -> None:
    sgd = partial(torch.optim.SGD, lr=1.0)
    server = Server(0, pieces_of(1, 4, 1, 1), torch.zeros(1), sgd, max_staleness=0, workers=2)
    [slot] = server.slots
    arrive, arrived = slot.arrive, Event()

    def recorded(*push: object) -> None:
        arrive(*push)  # type: ignore[arg-type]
        arrived.set()

    monkeypatch.setattr(slot, "arrive", recorded)
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


class Completed:
    """Work of a message that has been received."""

    def wait(self) -> None: ...


def test_new_weights_that_arrive_during_backward_are_not_used_before_its_end(store: TCPStore) -> None:
    """Keep the old weights during backward, which may still read them where they are used detached."""
    sgd = partial(torch.optim.SGD, lr=1.0)
    one_element_MB = 4e-6
    pieces = pieces_of(2, 4, 1, one_element_MB)
    server = Server(0, pieces, torch.ones(2), sgd, max_staleness=0, workers=1)
    weights_in_backward: list[float] = []
    with ThreadPoolExecutor(1) as threads:
        try:
            threads.submit(server.serve, store)
            model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
            client = Client(model, store, 0, servers=1, piece_MB=one_element_MB, timeout_seconds=SECONDS)

            def wait_for_the_last_layer(_: torch.Tensor) -> None:
                [(piece, arriving)] = client.receiving
                arriving.wait()
                client.receiving[0] = (piece, Completed())
                weights_in_backward.append(model[1].weight.item())  # type: ignore[operator]

            client.begin(1)
            inside = model[0](torch.tensor([2.0]))
            inside.register_hook(wait_for_the_last_layer)
            model[1](inside).backward()
            client.finish_pushes()
            client.finish_pulls()
            client.leave()
        finally:
            announce_end(store)
    assert weights_in_backward == [1.0]
    assert [weight.item() for weight in model.parameters()] == [-1.0, -1.0]


def _push(store: TCPStore) -> Client:
    """Send the gradients of worker 0; it stays connected as long as the returned client exists."""
    model = nn.Linear(1, 1, bias=False)
    client = Client(model, store, 0, servers=1, piece_MB=1, timeout_seconds=SECONDS)
    client.begin(1)
    model(torch.tensor([1.0])).backward()
    client.finish_pushes()
    return client


def _served_with(store: TCPStore, server: Server) -> None:
    """Serve one worker that pushes without waiting for an answer; raise the error of the server."""
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


def test_an_error_of_the_optimizer_is_raised_by_the_server(store: TCPStore) -> None:
    server = _server(partial(Broken, lr=1.0))
    with pytest.raises(RuntimeError, match="expected scalar type Half but found Float"):
        _served_with(store, server)


def test_an_error_of_on_version_is_raised_by_the_server(store: TCPStore) -> None:
    server = _server(partial(torch.optim.SGD, lr=1.0))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    server.on_version = full
    with pytest.raises(OSError, match="No space left on device"):
        _served_with(store, server)


def test_synchronous_weights_are_not_updated_after_a_worker_has_died(store: TCPStore) -> None:
    sgd = partial(torch.optim.SGD, lr=1.0)
    server = Server(0, pieces_of(1, 4, 1, 1), torch.zeros(1), sgd, max_staleness=0, workers=2)
    with ThreadPoolExecutor(1) as threads:
        try:
            serving = threads.submit(server.serve, store)
            surviving = _push(store)
            place = announce(store, 1)
            dying = ServerConnection(store, f"{place}/0", "worker", SECONDS)
            dying.receive(torch.empty(1), pull_tag(0)).wait()
            del dying
            surviving.leave()
        finally:
            announce_end(store)
    assert serving.result().versions == 0


def test_an_announced_worker_that_never_connects_does_not_block_the_end(store: TCPStore) -> None:
    server = _server(partial(torch.optim.SGD, lr=1.0))
    with ThreadPoolExecutor(1) as threads:
        serving = threads.submit(server.serve, store)
        announce(store, 0)
        announce_end(store)
        assert serving.result(5.0).versions == 0


@pytest.mark.slow
def test_a_worker_that_dies_in_the_middle_of_a_push_is_dropped(store: TCPStore) -> None:
    """Kill the worker when a part of its gradient has arrived; gloo does not report this to the receiver."""
    elements = 2**24
    sgd = partial(torch.optim.SGD, lr=1.0)
    pieces = pieces_of(elements, 4, 1, pushing_worker.PIECE_MB)
    server = Server(0, pieces, torch.zeros(elements), sgd, max_staleness=1, workers=2)
    with ThreadPoolExecutor(1) as threads, fork(store.port, elements, module=pushing_worker.__name__) as worker:
        serving = threads.submit(server.serve, store)
        try:
            while not server.sessions:
                with suppress(subprocess.TimeoutExpired):
                    pytest.fail(f"the worker ended with {worker.wait(0.01)}")
            [session] = server.sessions.values()
            inbox = session.inbox[0]
            while inbox[0] != 1 and worker.poll() is None:
                continue
            worker.kill()
            for thread in [
                thread for thread in enumerate_threads() if thread.name == f"worker-{pushing_worker.WORKER}"
            ]:
                thread.join(SECONDS)
            assert inbox[-1] != 1  # otherwise the whole push had arrived
            assert (server.sessions, server.pushes, server.slots[0].holding) == ({}, 0, {})
        finally:
            worker.kill()
            announce_end(store)
        serving.result(SECONDS)


def test_the_session_of_a_worker_is_dropped_when_it_leaves(store: TCPStore) -> None:
    server = _server(partial(torch.optim.SGD, lr=1.0))
    with ThreadPoolExecutor(1) as threads:
        serving = threads.submit(server.serve, store)
        _one_step(store, 3, 1.0)
        for thread in [thread for thread in enumerate_threads() if thread.name == "worker-3"]:
            thread.join(SECONDS)
        assert (server.sessions, server.pushes) == ({}, 1)
        announce_end(store)
        serving.result(SECONDS)


def test_an_answer_is_sent_even_if_the_worker_leaves_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker leave between the update and the answer to its push."""
    server = _server(partial(torch.optim.SGD, lr=1.0))
    [slot] = server.slots
    slot.holding = {0: 0}
    sent: list[int] = []

    class Connected:
        worker = 7

        def send(self, _: Slot) -> None:
            sent.append(self.worker)

    monkeypatch.setitem(server.sessions, 0, Connected())
    applying, left = Event(), Event()

    def wait_for_leaving(_: int) -> None:
        applying.set()
        left.wait(0.2)  # leaving may be blocked by the lock

    server.on_version = wait_for_leaving
    with ThreadPoolExecutor(2) as threads:
        pushing = threads.submit(slot.arrive, 0, Push([torch.zeros(1)], 1), server._answer)
        assert applying.wait(SECONDS)
        leaving = threads.submit(server._leave, 0)
        leaving.add_done_callback(lambda _: left.set())
        pushing.result(SECONDS)
        leaving.result(SECONDS)
    assert sent == [7]
    assert server.sessions == {}


def test_a_push_whose_worker_died_before_the_answer_is_still_applied_and_counted(store: TCPStore) -> None:
    """Delay a push by the staleness bound and let its worker die before the answer."""
    sgd = partial(torch.optim.SGD, lr=1.0)
    server = Server(0, pieces_of(1, 4, 1, 1), torch.zeros(1), sgd, max_staleness=1, workers=2)
    [slot] = server.slots

    class Gone:
        worker = 1

        def send(self, _: Slot) -> None:
            raise ConnectionLost

    with ThreadPoolExecutor(1) as threads:
        serving = threads.submit(server.serve, store)
        server.sessions[9] = Gone()  # type: ignore[assignment]
        slot.arrive(9, Push([torch.ones(1)], 1), server._answer)
        announce_end(store)
        served = serving.result(SECONDS)
    assert (served.applied, served.acknowledged) == (1, {1: 1})
