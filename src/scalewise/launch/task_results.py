"""Collect the results of a task from every rank, or the first cause of a failure."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from scalewise.core.errors import Failure
from scalewise.launch.elastic_agent import RankProcesses
from scalewise.launch.placement import RankGroup
from scalewise.launch.rank_failure import SYMPTOMS, first_cause, from_exit, from_hang, to_exception
from scalewise.launch.rank_process import SHOW_STACK
from scalewise.launch.worker import WAITS_FOR_OTHERS

OnReport = Callable[[int, Any], None]

# After the first failure the launcher waits for further ones: the end of a rank may be detected after the failures
# that it causes in its peers, and the rank that caused a timeout may report last.
_SETTLE_SECONDS = 0.3
_SETTLE_SYMPTOM_SECONDS = 2.0
_EXIT_SECONDS = 30.0
"""Longest wait for the exit code of a rank whose channel is closed: on a busy machine it arrives seconds later."""
_POLL_SECONDS = 0.05
_STACK_SECONDS = 0.3
MIN_JOIN_SECONDS = 30.0
"""Shortest time that ranks get to join the others, whatever the timeout: on a busy machine they start far apart."""
_CHECK_SECONDS = 1.0
"""Interval between checks of `seconds_left`, which depends on ranks of other groups."""


class ResultCollector:
    """Collects the reports, results and failures of the ranks that run one task."""

    def __init__(
        self,
        agent: RankProcesses,
        channels: Sequence[Connection],
        timeout_seconds: float,
        group: RankGroup,
        seconds_left: Callable[[], float | None] | None = None,
    ) -> None:
        """`seconds_left()`: seconds until other groups that wait for these ranks time out; None if they do not wait."""
        self._agent = agent
        self._channels = channels
        self._timeout_seconds = timeout_seconds
        self._group = group
        self._seconds_left = seconds_left
        self._results: dict[int, Any] = {}
        self._failures: list[Failure] = []
        self._gone: list[int] = []
        self._deadline: float | None = None
        self._allowed_seconds = timeout_seconds
        """Seconds allowed until the current deadline, for the message."""
        self._least_seconds = 0.0
        """Shortest time that ranks get after the first result of another."""
        self._waiting: set[int] = set()
        """Ranks that have reported that they wait for the others to join."""

    def gather(self, on_report: OnReport | None = None) -> list[Any]:
        """Return all results in rank order; after the first result, ranks must finish or report within the timeout."""
        while self._running() or self._gone:
            pending = {self._channels[rank]: rank for rank in self._running()}
            wait_seconds, is_last = self._wait_seconds()
            ready = wait([*pending, self._agent.ended], wait_seconds)
            senders = [rank for channel, rank in pending.items() if channel in ready]
            for rank in senders:
                self._receive(rank, on_report)
            if not senders and (ready or is_last):
                # After all messages are read: they explain a failure better than an exit code.
                self._failures += self._exit_failures() if ready else self._timeout_failures()
                break
        if self._failures:
            raise to_exception(self._cause())
        return [self._results[rank] for rank in range(len(self._channels))]

    def allow_start(self, seconds: float) -> None:
        """Give ranks this time to start, and at least MIN_JOIN_SECONDS after the first of them has started."""
        self._least_seconds = MIN_JOIN_SECONDS
        self.set_deadline(seconds)

    def set_deadline(self, seconds: float) -> None:
        """Set a deadline for the first message."""
        self._deadline, self._allowed_seconds = time.monotonic() + seconds, seconds

    def _wait_seconds(self) -> tuple[float | None, bool]:
        """Return the seconds to wait for messages, and whether ranks without a message have then timed out."""
        left = None if self._deadline is None else self._deadline - time.monotonic()
        if self._seconds_left is None or self._failures or self._gone:
            return (None, False) if left is None else (max(0.0, left), True)
        patience = self._seconds_left()
        if patience is None or patience > _CHECK_SECONDS:
            return _CHECK_SECONDS, False
        return max(0.0, patience), True

    def _running(self) -> list[int]:
        ended = {*self._results, *self._gone, *(failure.rank for failure in self._failures)}
        return [rank for rank in range(len(self._channels)) if rank not in ended]

    def _receive(self, rank: int, on_report: OnReport | None) -> None:
        try:
            kind, value = pickle.loads(self._channels[rank].recv_bytes())
        except (EOFError, OSError):  # a connection to another host may also time out
            self._gone.append(rank)
            self._shorten_deadline(_SETTLE_SYMPTOM_SECONDS)
            return
        if kind == "failure":
            self._failures.append(value)
            uncertain = value.kind in SYMPTOMS or value.users_code
            self._shorten_deadline(_SETTLE_SYMPTOM_SECONDS if uncertain else _SETTLE_SECONDS)
            return
        if kind == "result":
            self._results[rank] = value
        elif value == WAITS_FOR_OTHERS:
            if not self._waiting:
                self.set_deadline(max(self._timeout_seconds, MIN_JOIN_SECONDS))
            self._waiting.add(rank)
        elif on_report is not None:
            on_report(rank, value)
        if self._results and not self._failures and not self._gone:
            least_seconds = MIN_JOIN_SECONDS if self._waiting else self._least_seconds
            self.set_deadline(max(self._timeout_seconds, least_seconds))

    def _shorten_deadline(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

    def _exit_failures(self) -> list[Failure]:
        exits = self._agent.exits()
        failures = [from_exit(rank, code, self._group.process_name(rank)) for rank, code in exits.items()]
        return failures or [from_exit(rank, None, self._group.process_name(rank)) for rank in self._gone]

    def _timeout_failures(self) -> list[Failure]:
        if self._gone:
            self._wait_for_exit_codes()
            return self._exit_failures()
        silent = self._running()
        explained = any(failure.kind not in SYMPTOMS for failure in self._failures)
        waited_for = not self._failures or any(failure.kind == "timeout" for failure in self._failures)
        if explained or not waited_for or not silent:
            return []
        silent = [rank for rank in silent if rank not in self._waiting] or silent
        stacks, group = {rank: self._stack(rank) for rank in silent}, self._group
        # A stopped process cannot write its stack; processes that can may be waiting for it.
        silent = [rank for rank, stack in stacks.items() if not stack] or silent
        allowed_seconds = self._timeout_seconds if self._failures else self._allowed_seconds
        return [from_hang(silent, allowed_seconds, "".join(stacks.values()), group)]

    def _wait_for_exit_codes(self) -> None:
        """Wait until the agent has seen how the ranks without a channel ended; it ends itself if one has failed."""
        deadline = time.monotonic() + _EXIT_SECONDS
        while time.monotonic() < deadline and not all(map(self._agent.has_exited_normally, self._gone)):
            if wait([self._agent.ended], _POLL_SECONDS):
                return

    def _cause(self) -> Failure:
        cause = first_cause(self._failures)
        in_users_code = [failure for failure in self._failures if failure.users_code]
        if cause.users_code and len(in_users_code) < len(self._channels):
            return replace(cause, kind="error")  # not bad input, because other ranks accepted it
        return cause

    def _stack(self, rank: int) -> str:
        """Stack of a silent rank; its signal handler writes it to the channel, also while Python is busy."""
        self._agent.signal(SHOW_STACK, rank)
        channel, stack = self._channels[rank], b""
        while wait([channel], _STACK_SECONDS) and (piece := os.read(channel.fileno(), 65536)):
            stack += piece
        return f"{self._group.process_name(rank)}:\n{stack.decode(errors='replace')}" if stack else ""
