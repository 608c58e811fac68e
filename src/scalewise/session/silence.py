"""Which of several workers that wait for nobody has said nothing for too long, while another got on."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from time import monotonic

SAY_SO_SECONDS = 2.0
"""Beyond the timeout: one that itself waits for a server has found that out by then, and says so."""


class Silence:
    """A worker's clock starts when another has reported twice, and so done a whole update, or has finished, since this
    one was last heard of: workers that are all slow are not silent. Heard of by a thread for each."""

    def __init__(self, timeout_seconds: float, now: Callable[[], float] = monotonic) -> None:
        self._timeout_seconds, self._now = timeout_seconds, now
        self._patience_seconds = timeout_seconds + SAY_SO_SECONDS
        self._lock = Lock()
        self._heard: dict[int, float] = {}
        self._deadlines: dict[int, float] = {}
        self._since: dict[int, dict[int, int]] = {}
        """Worker -> how often each of the others has reported since it did."""
        self._finished = False

    def begin(self, worker: int) -> None:
        """Told that it works, before it has anything to say; a replacement too."""
        self.report(worker)

    def report(self, worker: int) -> None:
        with self._lock:
            self._restart(worker)
            for other in self._heard.keys() - {worker}:
                seen = self._since[other]
                seen[worker] = seen.get(worker, 0) + 1
                if seen[worker] > 1:
                    self._deadlines.setdefault(other, self._now() + self._patience_seconds)

    def finish(self, worker: int) -> None:
        """Nothing is left to do: the others do what they have in hand."""
        with self._lock:
            self._leave(worker)
            self._finished = True
            for other in self._heard:
                self._deadlines.setdefault(other, self._now() + self._patience_seconds)

    def drop(self, worker: int) -> None:
        with self._lock:
            self._leave(worker)

    def waited(self, worker: int) -> None:
        """It has waited for another as long as it may: whoever has been silent for as long, and goes on to be, is
        overdue."""
        with self._lock:
            self._leave(worker)
            soonest = self._now() + SAY_SO_SECONDS
            for other, heard in self._heard.items():
                overdue = max(heard + self._timeout_seconds, soonest)
                self._deadlines[other] = min(overdue, self._deadlines.get(other, overdue))

    def seconds_left(self, worker: int) -> float | None:
        """None: nobody has been waiting for it."""
        with self._lock:
            deadline = self._deadlines.get(worker)
            return None if deadline is None else deadline - self._now()

    def _restart(self, worker: int) -> None:
        self._heard[worker] = self._now()
        self._since[worker] = {}
        self._deadlines.pop(worker, None)
        if self._finished:
            self._deadlines[worker] = self._heard[worker] + self._patience_seconds

    def _leave(self, worker: int) -> None:
        for each in (self._heard, self._since, self._deadlines):
            each.pop(worker, None)
