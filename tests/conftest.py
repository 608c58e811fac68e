"""Fixture with ranks that all tests share: started on first use, replaced after a failure."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

# Read when torch is loaded, here and in every rank: hides warnings that emulated hosts have no DNS name.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

# torch queries the name server for every connection to a store; by default a lost answer costs 5 s.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

# Background processes of a script ignore Ctrl-C; the tested commands must receive it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import torch

from scalewise.launch.parameter_server_session import ServedSession
from scalewise.launch.placement import Placement
from scalewise.launch.session import Session
from scalewise.strategies.base import Strategy
from scalewise.training.session_pool import open_session
from tests.short_visits import shortened

SIDE_BY_SIDE = "PYTEST_XDIST_WORKER" in os.environ
if SIDE_BY_SIDE:
    torch.set_num_threads(1)  # the processes share the cores; ranks set their own number

DEVICE_KIND = os.environ.get("SCALEWISE_TEST_DEVICE_KIND", "cpu")
"""Device kind of the shared ranks; set SCALEWISE_TEST_DEVICE_KIND to 'cuda' or 'slice' on a machine with a GPU."""


class SessionOf(Protocol):
    """Function that returns an open session with `ranks` ranks and the servers that the strategy needs."""

    def __call__(self, ranks: int, strategy: Strategy | None = None) -> Any: ...


@pytest.fixture(scope="session")
def session_of() -> Iterator[SessionOf]:
    """Open sessions on demand; a test must leave its session idle or closed."""
    sessions: dict[tuple[int, int, bool], Session | ServedSession] = {}

    def session_with(ranks: int, strategy: Strategy | None = None) -> Any:
        servers: int = getattr(strategy, "servers", 0)
        key = ranks, servers, bool(servers) and not strategy.exact  # type: ignore[union-attr]
        if key not in sessions or not sessions[key].is_open:
            placement = Placement(ranks, DEVICE_KIND)
            if servers:  # one such session at a time, because idle rank groups cost processor time
                for other in [open_key for open_key in sessions if open_key[1]]:
                    sessions.pop(other).close()
            session = open_session(strategy, placement) if strategy and servers else Session(placement)
            sessions[key] = session.__enter__()  # type: ignore[assignment]
        return sessions[key]

    yield session_with
    for session in sessions.values():
        session.close()


@pytest.fixture(scope="module")
def short_visits() -> Iterator[None]:
    """Make the sweeps of a module short: as many visits to every cell, with few steps each."""
    with shortened():
        yield


def pytest_collection_finish() -> None:
    """Leave modules and collected tests out of garbage collections, which every measurement of memory starts."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use ranks as slow; when tests run side by side, begin with the modules that take longest."""
    for item in items:
        if "session_of" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
    if SIDE_BY_SIDE:
        slow_tests = Counter(item.path for item in items if item.get_closest_marker("slow"))
        items.sort(key=lambda item: -slow_tests[item.path])
