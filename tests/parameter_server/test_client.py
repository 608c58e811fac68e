"""A worker that dies while it joins does not block others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from scalewise.launch.elastic_agent import LOOPBACK
from scalewise.launch.store import open_tcp_store
from scalewise.parameter_server.client import announce, announce_end, arrivals

SECONDS = 20.0


class Dead(Exception):
    pass


class Dying:
    """Store client of a worker that dies before its second request."""

    def __init__(self, store: TCPStore) -> None:
        self.store, self.requests = store, 0

    def __getattr__(self, name: str) -> Any:
        self.requests += 1
        if self.requests > 1:
            raise Dead
        return getattr(self.store, name)


def test_workers_that_join_after_a_dead_one_are_found() -> None:
    store = open_tcp_store(LOOPBACK, SECONDS)
    with ThreadPoolExecutor(1) as threads:
        arrived = threads.submit(lambda: [worker for _, worker in arrivals(store)])
        try:
            assert announce(store, 5) == 0
            with suppress(Dead):
                announce(Dying(store), 6)  # type: ignore[arg-type]
            announce(store, 7)
            announce_end(store)
            workers = arrived.result(SECONDS)
        except BaseException:
            store.set("joined/1", "6")  # otherwise the thread would wait forever
            raise
    assert (workers[0], workers[-1]) == (5, 7)
