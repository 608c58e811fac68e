"""Stop a run between two steps: all ranks agree on the last step, save and end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from scalewise.core.errors import PeerSilent

_PATIENCE = timedelta(hours=1)
_STOP, _NOTHING = "stop", "nothing"


class GracefulStop:
    """Request to stop, and the last step before the stop.

    A rank must not stop while another waits for it in a collective. So every rank announces a step before it begins it
    (`may_begin`). After a request the ranks exchange the steps that they have announced, and all continue to the
    largest of them. In a run of one process the announced step is the last.
    """

    def __init__(self, timeout_seconds: float = 60.0) -> None:
        self.timeout_seconds = timeout_seconds
        self.requested = False
        self.announced = 0
        self._last = 0
        self._agreed = threading.Event()

    def start(self, steps_done: int) -> None:
        """Start a run that continues after `steps_done` steps."""
        self.announced = steps_done

    def may_begin(self, step: int) -> bool:
        """Announce a step, counted from 0, and return whether to compute it."""
        # The order matters: a request that is not visible here finds the announcement.
        self.announced = step + 1
        if not self.requested:
            return True
        if not self._agreed.wait(self.timeout_seconds):
            raise PeerSilent(f"a rank did not answer the request to stop within {self.timeout_seconds:g} s")
        return step < self._last

    def request(self) -> None:
        """Stop a run of one process after its current step."""
        self.requested = True
        self.agree(self.announced)

    def close(self) -> None:
        """End the wait for a request."""

    def agree(self, last: int) -> None:
        self._last = last
        self._agreed.set()


class RankStop(GracefulStop):
    """Stop of a rank among others: a thread waits for the request in the store and agrees with the other ranks."""

    def __init__(self, store: Store, rank: int, world: int, timeout_seconds: float) -> None:
        super().__init__(timeout_seconds)
        self._rank, self._world = rank, world
        self._store = store
        # Waiting blocks a store client, so the thread has its own.
        waiting = store.clone()  # type: ignore[attr-defined]
        threading.Thread(target=self._wait, args=(waiting,), daemon=True, name="scalewise-stop").start()

    def request(self) -> None:
        request_stop(self._store, range(self._world))

    def close(self) -> None:
        """End the thread, which waits in the store, before the process ends."""
        with suppress(RuntimeError):  # the store is gone
            self._store.set(_request_key(self._rank), _NOTHING)

    def _wait(self, store: Store) -> None:
        with suppress(RuntimeError):  # the store is gone, and so is the run
            if _waited_for(store, _request_key(self._rank)) == _STOP:
                self.requested = True
                store.set(_announced_key(self._rank), str(self.announced))
                self.agree(max(int(store.get(_announced_key(rank))) for rank in range(self._world)))


def request_stop(store: Store, ranks: range) -> None:
    """Request that the ranks of a group stop; `store` contains the keys of this group."""
    for rank in ranks:
        store.set(_request_key(rank), _STOP)


def stop_store(store: Store, group: str) -> PrefixStore:
    """Part of a store in which the ranks of a group agree on a stop."""
    return PrefixStore(f"stop/{group}", store)


def _request_key(rank: int) -> str:
    return f"request/{rank}"


def _announced_key(rank: int) -> str:
    return f"announced/{rank}"


def _waited_for(store: Store, key: str) -> str:
    while True:
        try:
            store.wait([key], _PATIENCE)
        except dist.DistStoreError:
            continue
        return store.get(key).decode()


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SAME_REQUEST_SECONDS = 1.0
"""torchrun passes on a signal that its ranks may have received already from the terminal or the scheduler."""


class StopSignals:
    """Handler of SIGINT (Ctrl-C) and SIGTERM (sent by schedulers).

    The first signal calls `request`, the second raises KeyboardInterrupt. Without `request` the first one does. Signals
    that the process ignores stay ignored. Threads other than the main thread change nothing.
    """

    def __init__(self, *, relayed: bool = False) -> None:
        """`relayed`: count signals within a second as one."""
        self.request: Callable[[], None] | None = None
        self.requested = False
        self._ignored_seconds = _SAME_REQUEST_SECONDS if relayed else 0.0
        self._requested_at = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.requested and monotonic() - self._requested_at < self._ignored_seconds:
            return
        if self.requested or self.request is None:
            raise KeyboardInterrupt
        self.requested, self._requested_at = True, monotonic()
        if sys.stderr is not None and sys.stderr.isatty():  # written directly: a handler may interrupt a print
            os.write(2, b"\nscalewise: stopping after this step; a second signal stops at once\n")
        self.request()
