"""Ranks for the whole test run: started when first asked for, shared by all tests, replaced after a failure."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

# Read as torch loads, here and in every rank: below errors it only remarks that rehearsed hosts have no DNS name.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

# torch asks the name server about every connection to a store; an answer that is lost holds it up for 5 s by default.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

# Whatever a script starts in the background ignores Ctrl-C; commands that are tested must hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from scalewise.session.placement import Placement
from scalewise.session.served import ServedSession
from scalewise.session.session import Session
from scalewise.strategies.strategy import Strategy
from scalewise.verbs.opening import open_session

DEVICE_KIND = os.environ.get("SCALEWISE_TEST_DEVICE_KIND", "cpu")
"""On a machine with a GPU the same contract can be checked on 'cuda' and 'slice'."""


class SessionOf(Protocol):
    """An open session of so many ranks, with the servers that a strategy needs."""

    def __call__(self, ranks: int, strategy: Strategy | None = None) -> Any: ...


@pytest.fixture(scope="session")
def session_of() -> Iterator[SessionOf]:
    """Tests leave a session as they found it, or broken: never half-way."""
    opened: dict[tuple[int, int, bool], Session | ServedSession] = {}

    def session_with(ranks: int, strategy: Strategy | None = None) -> Any:
        servers: int = getattr(strategy, "servers", 0)
        key = ranks, servers, bool(servers) and not strategy.exact  # type: ignore[union-attr]
        if key not in opened or not opened[key].is_open:
            placement = Placement(ranks, DEVICE_KIND)
            if servers:  # one at a time: every crew that waits costs its launcher some processor time
                for other in [each for each in opened if each[1]]:
                    opened.pop(other).close()
            session = open_session(strategy, placement) if strategy and servers else Session(placement)
            opened[key] = session.__enter__()  # type: ignore[assignment]
        return opened[key]

    yield session_with
    for session in opened.values():
        session.close()
