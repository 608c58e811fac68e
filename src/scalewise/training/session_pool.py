"""Open the session that a strategy needs, and reuse open sessions for the next cells."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from types import TracebackType
from typing import Any

import torch

from scalewise.core.errors import RunFailed, UserError
from scalewise.launch.existing_processes import InProcess, TorchrunSession
from scalewise.launch.parameter_server_session import ServedSession
from scalewise.launch.placement import Placement, under_torchrun
from scalewise.launch.session import Session
from scalewise.strategies.base import SessionKind, Strategy
from scalewise.strategies.registry import STANDARD
from scalewise.training.setup import check_strategy
from scalewise.training.tasks import serve_task

AnySession = Session | TorchrunSession | InProcess | ServedSession


def open_session(strategy: Strategy, placement: Placement) -> AnySession:
    """Create the session that the strategy needs. Under torchrun it uses the ranks that torchrun has started.

    Raise UserError if the strategy cannot run on this placement.
    """
    if strategy.session_kind is SessionKind.RANKS_AND_SERVERS:
        return _open_with_servers(strategy, placement)
    if strategy.reference:
        check_strategy(strategy, placement)
        return Session(placement) if placement.device_kind == "slice" else InProcess(placement)
    check_strategy(strategy, placement)
    if strategy.session_kind is SessionKind.ONE_PROCESS:
        strategy.check_gpus(placement.devices, torch.cuda.device_count())
        return InProcess(placement)
    session: AnySession
    if under_torchrun():
        session = TorchrunSession(placement)
    elif strategy.one_host and placement.devices == 1 and placement.device_kind != "slice" and not placement.slow:
        session = InProcess(placement)
    else:
        session = Session(placement)
    strategy.check_hosts(session.placement.hosts)
    return session


def _open_with_servers(strategy: Strategy, placement: Placement) -> ServedSession:
    if under_torchrun():
        raise UserError(
            f"{strategy.name} cannot start its servers in a script that every rank of torchrun runs; use "
            f"{STANDARD.name}, or start the command instead: torchrun ... -m scalewise train"
        )
    placement = replace(placement, servers=strategy.servers)
    if strategy.asynchronous:
        return ServedSession(placement, serve_task, independent=True, replacements=strategy.replacements)
    return ServedSession(placement, serve_task)


MOST_OPEN = 6
"""Open sessions at once: idle ranks sleep but keep their memory. Sessions of slices need their own MPS daemon, so only
one of them is open at a time."""

OnReport = Callable[[int, Any], None]


class Sessions:
    """Pool of open sessions. `run` opens the session that a strategy needs, or reuses it if it is already open."""

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
        """Run the task; return the placement, every rank's result, and the seconds without the start of ranks."""
        fresh = open_for(strategy, placement)  # starts no process, but raises UserError for an unsuitable placement
        key = _key(strategy, placement, fresh)
        session = self._open.pop(key, None)
        if session is None:
            self._close_down_to(0 if placement.device_kind == "slice" else MOST_OPEN - 1)
            session = fresh.__enter__()
        started = perf_counter()
        try:
            results = session.run(task, *arguments, on_report=on_report)
        except BaseException:
            _close(session)
            raise
        self._open[key] = session  # moved to the end: the least recently used session is closed first
        return session.placement, results, perf_counter() - started

    def __enter__(self) -> Sessions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_down_to(0)

    def _close_down_to(self, count: int) -> None:
        """Close the least recently used sessions until at most `count` are open."""
        while len(self._open) > count:
            _close(self._open.pop(next(iter(self._open))))


def open_for(strategy: Strategy, placement: Placement) -> AnySession:
    """Create a session for a cell. A single device runs in its own process, so that its crash does not end a sweep."""
    if strategy.reference:
        return Session(placement)
    session = open_session(strategy, placement)
    return Session(placement) if isinstance(session, InProcess) and placement.devices == 1 else session


def _key(strategy: Strategy, placement: Placement, session: AnySession) -> tuple[object, ...]:
    """Key of a session: cells with the same key can run one after the other in the same session."""
    return repr(placement), type(session), strategy.servers, strategy.asynchronous, strategy.replacements


def _close(session: AnySession) -> None:
    with suppress(RunFailed):  # the failure was already reported
        session.__exit__(None, None, None)
