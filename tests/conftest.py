"""Ranks for the whole test run: started when first asked for, shared by all tests, replaced after a failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

# Read as torch loads, here and in every rank: below errors it only remarks that rehearsed hosts have no DNS name.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from scalewise.session.placement import Placement
from scalewise.session.session import Session

SessionOf = Callable[[int], Session]


DEVICE_KIND = os.environ.get("SCALEWISE_TEST_DEVICE_KIND", "cpu")
"""On a machine with a GPU the same contract can be checked on 'cuda' and 'slice'."""


@pytest.fixture(scope="session")
def session_of() -> Iterator[SessionOf]:
    """`session_of(n)`: an open session of n ranks. Tests leave it as they found it, or broken: never half-way."""
    opened: dict[int, Session] = {}

    def session_with(ranks: int) -> Session:
        if ranks not in opened or not opened[ranks].is_open:
            opened[ranks] = Session(Placement(ranks, DEVICE_KIND)).__enter__()
        return opened[ranks]

    yield session_with
    for session in opened.values():
        session.close()
