"""A worker that dies on its way to the servers holds nobody up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from scalewise.servers.meeting import announce, announce_end, arrivals
from scalewise.session.rendezvous import LOOPBACK, open_store

SECONDS = 20.0


class Dead(Exception):
    pass


class Dying:
    """A store whose user dies before it can ask a second time."""

    def __init__(self, store: TCPStore) -> None:
        self.store, self.asked = store, 0

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        if self.asked > 1:
            raise Dead
        return getattr(self.store, name)


def test_whoever_joins_is_seen_whatever_became_of_those_before() -> None:
    store = open_store(LOOPBACK, SECONDS)
    with ThreadPoolExecutor(1) as threads:
        seen = threads.submit(lambda: [worker for _, worker in arrivals(store)])
        try:
            assert announce(store, 5) == 0
            with suppress(Dead):
                announce(Dying(store), 6)  # type: ignore[arg-type]
            announce(store, 7)
            announce_end(store)
            found = seen.result(SECONDS)
        except BaseException:
            store.set("joined/1", "6")  # or the thread would wait for ever
            raise
    assert (found[0], found[-1]) == (5, 7)
