"""Sessions kept open from cell to cell: ranks are started once for all cells that can share them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from types import TracebackType
from typing import Any

from scalewise.errors import RunFailed
from scalewise.session.inprocess import InProcess
from scalewise.session.placement import Placement
from scalewise.session.session import Session
from scalewise.strategies.single import Single
from scalewise.strategies.strategy import Strategy
from scalewise.verbs.opening import AnySession, open_session

MOST_OPEN = 6
"""Idle ranks sleep, but keep their memory. Slices of one GPU have a daemon per session: one at a time."""

OnReport = Callable[[int, Any], None]


class Sessions:
    """`run` like a session's; the one that fits is opened, or opened again after a failure."""

    def __init__(self) -> None:
        self._open: dict[tuple[object, ...], AnySession] = {}

    def run(
        self,
        strategy: Strategy,
        placement: Placement,
        task: Callable[..., Any],
        *arguments: Any,
        on_report: OnReport | None = None,
    ) -> tuple[Placement, list[Any], float]:
        """Where it ran, each rank's result, and the seconds it took, without those of starting ranks."""
        fresh = open_for(strategy, placement)  # starts nothing, but refuses what the strategy cannot do there
        key = _key(strategy, placement)
        session = self._open.pop(key, None)
        if session is None:
            self._make_room(1 if placement.device_kind == "slice" else MOST_OPEN)
            session = fresh.__enter__()
        started = perf_counter()
        try:
            results = session.run(task, *arguments, on_report=on_report)
        except BaseException:
            _close(session)
            raise
        self._open[key] = session  # the latest used is the last to be closed
        return session.placement, results, perf_counter() - started

    def __enter__(self) -> Sessions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._make_room(1)

    def _make_room(self, most: int) -> None:
        while len(self._open) >= most:
            _close(self._open.pop(next(iter(self._open))))


def open_for(strategy: Strategy, placement: Placement) -> AnySession:
    """One device too has a process of its own: a cell that brings it down must not end the sweep."""
    if isinstance(strategy, Single):
        return Session(placement)
    session = open_session(strategy, placement)
    return Session(placement) if isinstance(session, InProcess) and placement.devices == 1 else session


def _key(strategy: Strategy, placement: Placement) -> tuple[object, ...]:
    """Strategies differ in what they need beside ranks: servers, workers that die alone, or no ranks at all."""
    served = (getattr(strategy, "servers", 0), strategy.exact, getattr(strategy, "replacements", 0))
    return repr(placement), served if served[0] else None, getattr(strategy, "engine", None)


def _close(session: AnySession) -> None:
    with suppress(RunFailed):  # what it has to say was said
        session.__exit__(None, None, None)
