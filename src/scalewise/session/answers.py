"""The launcher's side of a task: an answer from every rank, or the first cause of why there is none."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from scalewise.session.agent import Agent
from scalewise.session.crew import Crew
from scalewise.session.failure import SYMPTOMS, Failure, first_cause, from_exit, from_silence, to_exception
from scalewise.session.rank import SHOW_STACK
from scalewise.session.worker import WAITS_FOR_OTHERS

OnReport = Callable[[int, Any], None]

# After the first failure the launcher listens on, because the news of a death may come after its consequences,
# and a rank that waits may have begun to do so later than its peers.
_SETTLE_SECONDS = 0.3
_SETTLE_SYMPTOM_SECONDS = 2.0
_STACK_SECONDS = 0.3
LEAST_MEETING_SECONDS = 30.0
"""Allowed for the others then, however short the timeout: on a busy machine ranks start far apart."""
_LOOK_SECONDS = 1.0
"""Between looks at whether others, whom this launcher's thread does not hear, have begun to wait."""


class Answers:
    """One task's answers as they come in."""

    def __init__(
        self,
        agent: Agent,
        channels: Sequence[Connection],
        timeout_seconds: float,
        crew: Crew,
        seconds_left: Callable[[], float | None] | None = None,
    ) -> None:
        """`seconds_left`: of the patience of others than these ranks; None while nobody waits."""
        self._agent = agent
        self._channels = channels
        self._timeout_seconds = timeout_seconds
        self._crew = crew
        self._seconds_left = seconds_left
        self._results: dict[int, Any] = {}
        self._failures: list[Failure] = []
        self._gone: list[int] = []
        self._deadline: float | None = None
        self._allowed_seconds = timeout_seconds
        """Of which the deadline is the end."""
        self._waiting: set[int] = set()
        """Ranks that have said that they wait for others."""

    def gather(self, on_report: OnReport | None = None) -> list[Any]:
        """All results by rank; from the first one on, the timeout counts for ranks that neither finish nor report."""
        while self._awaited() or self._gone:
            pending = {self._channels[rank]: rank for rank in self._awaited()}
            patience_seconds, is_last = self._patience()
            ready = wait([*pending, self._agent.ended], patience_seconds)
            heard = [rank for channel, rank in pending.items() if channel in ready]
            for rank in heard:
                self._hear(rank, on_report)
            if not heard and (ready or is_last):
                # Only now: what ranks said before they ended explains more than how they ended.
                self._failures += self._ended() if ready else self._overdue()
                break
        if self._failures:
            raise to_exception(self._cause())
        return [self._results[rank] for rank in range(len(self._channels))]

    def expect(self, seconds: float) -> None:
        """Start the clock before anyone has answered."""
        self._deadline, self._allowed_seconds = time.monotonic() + seconds, seconds

    def _patience(self) -> tuple[float | None, bool]:
        """Seconds to wait, and whether nothing heard in them is too little."""
        left = None if self._deadline is None else self._deadline - time.monotonic()
        if self._seconds_left is None or self._failures or self._gone:
            return (None, False) if left is None else (max(0.0, left), True)
        others = self._seconds_left()
        if others is None or others > _LOOK_SECONDS:
            return _LOOK_SECONDS, False
        return max(0.0, others), True

    def _awaited(self) -> list[int]:
        heard_of = {*self._results, *self._gone, *(failure.rank for failure in self._failures)}
        return [rank for rank in range(len(self._channels)) if rank not in heard_of]

    def _hear(self, rank: int, on_report: OnReport | None) -> None:
        try:
            kind, value = pickle.loads(self._channels[rank].recv_bytes())
        except (EOFError, ConnectionError):
            self._gone.append(rank)
            self._listen_on(_SETTLE_SYMPTOM_SECONDS)
            return
        if kind == "failure":
            self._failures.append(value)
            uncertain = value.kind in SYMPTOMS or value.of_users_code
            self._listen_on(_SETTLE_SYMPTOM_SECONDS if uncertain else _SETTLE_SECONDS)
            return
        if kind == "result":
            self._results[rank] = value
        elif value == WAITS_FOR_OTHERS:
            if not self._waiting:
                self.expect(max(self._timeout_seconds, LEAST_MEETING_SECONDS))
            self._waiting.add(rank)
        elif on_report is not None:
            on_report(rank, value)
        if self._results and not self._failures and not self._gone:
            self.expect(max(self._timeout_seconds, LEAST_MEETING_SECONDS if self._waiting else 0.0))

    def _listen_on(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._deadline = until if self._deadline is None else min(self._deadline, until)

    def _ended(self) -> list[Failure]:
        exits = self._agent.exits()
        seen = [from_exit(rank, code, self._crew.who(rank)) for rank, code in exits.items()]
        return seen or [from_exit(rank, None, self._crew.who(rank)) for rank in self._gone]

    def _overdue(self) -> list[Failure]:
        if self._gone:
            return [from_exit(rank, None, self._crew.who(rank)) for rank in self._gone]
        silent = self._awaited()
        explained = any(failure.kind not in SYMPTOMS for failure in self._failures)
        waited_for = not self._failures or any(failure.kind == "timeout" for failure in self._failures)
        if explained or not waited_for or not silent:
            return []
        silent = [rank for rank in silent if rank not in self._waiting] or silent
        stacks, crew = {rank: self._stack(rank) for rank in silent}, self._crew
        # A stopped process cannot even say where it is; those that can may be waiting for it.
        silent = [rank for rank, stack in stacks.items() if not stack] or silent
        allowed_seconds = self._timeout_seconds if self._failures else self._allowed_seconds
        return [from_silence(silent, allowed_seconds, "".join(stacks.values()), crew.role, crew.first)]

    def _cause(self) -> Failure:
        cause = first_cause(self._failures)
        alike = [failure for failure in self._failures if failure.of_users_code]
        if cause.of_users_code and len(alike) < len(self._channels):
            return cause.on_this_rank_alone(self._crew.who(cause.rank))
        return cause

    def _stack(self, rank: int) -> str:
        """Where a silent rank is: its signal handler writes that to the channel, as text, without the interpreter."""
        self._agent.signal(SHOW_STACK, rank)
        channel, stack = self._channels[rank], b""
        while wait([channel], _STACK_SECONDS) and (piece := os.read(channel.fileno(), 65536)):
            stack += piece
        return f"{self._crew.who(rank)}:\n{stack.decode(errors='replace')}" if stack else ""
