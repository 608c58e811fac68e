"""Session with workers and parameter servers; detects ranks that hang while others make progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from threading import Lock
from time import monotonic
from types import TracebackType
from typing import Any

from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from scalewise.core.errors import Kind, RankFailed
from scalewise.launch.devices import settle
from scalewise.launch.placement import Placement, RankGroup
from scalewise.launch.rank_failure import SYMPTOMS
from scalewise.launch.session import Session, SharedResources, prepare_resources
from scalewise.launch.task_results import OnReport
from scalewise.launch.worker import SHARED_PREFIX, Worker
from scalewise.parameter_server.client import announce_end

GRACE_SECONDS = 2.0
"""Seconds added to the timeout: a worker that waits for a silent server reports that itself within this time."""


class HeartbeatMonitor:
    """Deadline of each worker for its next report.

    A worker gets a deadline when, since its last report, another worker has reported twice (one complete update) or
    has finished. So workers that are all slow never time out. Thread-safe.
    """

    def __init__(self, timeout_seconds: float, now: Callable[[], float] = monotonic) -> None:
        self._timeout_seconds, self._now = timeout_seconds, now
        self._deadline_seconds = timeout_seconds + GRACE_SECONDS
        self._lock = Lock()
        self._last_report: dict[int, float] = {}
        self._deadlines: dict[int, float] = {}
        self._reports_of_others: dict[int, dict[int, int]] = {}
        """Worker -> number of reports of each other worker since this worker's last report."""
        self._finished = False

    def start(self, worker: int) -> None:
        """Add a worker, or a replacement, before its first report."""
        self.report(worker)

    def report(self, worker: int) -> None:
        with self._lock:
            self._restart(worker)
            for other in self._last_report.keys() - {worker}:
                counts = self._reports_of_others[other]
                counts[worker] = counts.get(worker, 0) + 1
                if counts[worker] > 1:
                    self._deadlines.setdefault(other, self._now() + self._deadline_seconds)

    def finish(self, worker: int) -> None:
        """Remove a worker for which no work is left; the other workers must finish or report within the timeout."""
        with self._lock:
            self._remove(worker)
            self._finished = True
            for other in self._last_report:
                self._deadlines.setdefault(other, self._now() + self._deadline_seconds)

    def drop(self, worker: int) -> None:
        with self._lock:
            self._remove(worker)

    def timed_out(self, worker: int) -> None:
        """Remove a worker that timed out while it waited for another; workers silent as long get an early deadline."""
        with self._lock:
            self._remove(worker)
            soonest = self._now() + GRACE_SECONDS
            for other, last_report in self._last_report.items():
                deadline = max(last_report + self._timeout_seconds, soonest)
                self._deadlines[other] = min(deadline, self._deadlines.get(other, deadline))

    def seconds_left(self, worker: int) -> float | None:
        """Seconds until the worker's deadline; None if it has none."""
        with self._lock:
            deadline = self._deadlines.get(worker)
            return None if deadline is None else deadline - self._now()

    def _restart(self, worker: int) -> None:
        self._last_report[worker] = self._now()
        self._reports_of_others[worker] = {}
        self._deadlines.pop(worker, None)
        if self._finished:
            self._deadlines[worker] = self._last_report[worker] + self._deadline_seconds

    def _remove(self, worker: int) -> None:
        self._last_report.pop(worker, None)
        self._reports_of_others.pop(worker, None)
        self._deadlines.pop(worker, None)


# When a server dies, its workers fail with a lost connection, possibly before the launcher detects the dead server:
# on a busy machine seconds before.
_SETTLE_SECONDS = {"timeout": 3.0, "lost": 10.0}
_GONE: frozenset[Kind] = frozenset({"died", "lost"})
"""Failures of an asynchronous worker that the run survives; a worker that raises or hangs fails the run."""
Task = Callable[..., Any]


class ServedSession:
    """Session whose `run(task, *args)` runs the task on workers while servers run `serve(worker, *args)`.

    With `independent`, every worker is a group of its own: if it dies, it is replaced or dropped and the others
    continue.
    """

    is_main = True

    def __init__(self, placement: Placement, serve: Task, *, independent: bool = False, replacements: int = 0) -> None:
        self.placement = settle(placement)
        self.served: list[Any] = []
        """Results of the servers in the last run."""
        self.lost: list[str] = []
        """One sentence for each worker lost in the last run."""
        self._serve = serve
        self._independent = independent
        self._replacements = replacements
        self._stack = ExitStack()
        self._resources: SharedResources | None = None
        self._servers: Session | None = None
        self._workers: dict[int, Session] = {}
        self._runs = self._started = 0

    def __enter__(self) -> ServedSession:
        with ExitStack() as stack:
            self._resources = stack.enter_context(prepare_resources(self.placement))
            self._servers = Session(
                self.placement, self._resources, RankGroup(self.placement.servers, "server", 0, "servers")
            )
            stack.enter_context(self._servers)
            numbers = range(self.placement.devices) if self._independent else [0]
            stack.callback(self._close_workers)
            for number in numbers:
                self._workers[number] = self._open_worker(number)
            self._stack = stack.pop_all()
        return self

    def run(self, task: Task, *args: Any, on_report: OnReport | None = None) -> list[Any]:
        """Run the task on all workers; return the results of those that finished, ordered by worker number."""
        servers = self._servers
        if servers is None or not self.is_open:
            raise RuntimeError("this session is closed; open another")
        self._runs += 1
        self.lost = []
        report = _with_lock(on_report)
        monitor = HeartbeatMonitor(self.placement.timeout_seconds)
        with ThreadPoolExecutor(1 + self.placement.devices) as threads:
            serving = threads.submit(servers.run, run_with_own_keys, self._runs, self._serve, *args)

            def start(number: int) -> Future[list[Any]]:
                def forward(rank: int, value: Any) -> None:
                    monitor.report(number)
                    report(number + rank, value)

                monitor.start(number)
                left = partial(monitor.seconds_left, number) if self._independent else None
                session = self._workers[number]
                return threads.submit(
                    session.run, run_with_own_keys, self._runs, task, *args, on_report=forward, seconds_left=left
                )

            try:
                results = self._gather(serving, {start(number): number for number in self._workers}, start, monitor)
                announce_end(self._run_store())
                self.served = serving.result()
            except BaseException:
                self.abort()
                raise
        return results

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, then of the servers."""
        sessions = [self._workers[number] for number in sorted(self._workers)]
        return [pid for session in (*sessions, self._servers) if session is not None for pid in session.pids]

    @property
    def is_open(self) -> bool:
        return bool(self._workers) and all(
            session is not None and session.is_open for session in (self._servers, *self._workers.values())
        )

    def request_stop(self) -> None:
        """Request that the workers end the task after the current step; servers end when all workers have."""
        for session in self._workers.values():
            session.request_stop()

    def abort(self) -> None:
        for session in (self._servers, *self._workers.values()):
            if session is not None:
                session.abort()

    def close(self) -> None:
        self._stack.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _gather(
        self,
        serving: Future[list[Any]],
        working: dict[Future[list[Any]], int],
        start: Callable[[int], Future[list[Any]]],
        monitor: HeartbeatMonitor,
    ) -> list[Any]:
        results: dict[int, list[Any]] = {}
        replacements = self._replacements
        while working:
            done, _ = wait([serving, *working], return_when=FIRST_COMPLETED)
            for future in done - {serving}:
                number, error = working.pop(future), future.exception()
                if error is None:
                    results[number] = future.result()
                    monitor.finish(number)
                    continue
                if isinstance(error, RankFailed) and error.kind == "timeout":
                    monitor.timed_out(number)
                _raise_cause(error, serving, working)
                if not self._independent or not isinstance(error, RankFailed) or error.kind not in _GONE:
                    raise error
                monitor.drop(number)
                self.lost.append(
                    f"{error}; {'a replacement was started' if replacements else 'the other workers continued'}"
                )
                if replacements:
                    replacements -= 1
                    self._workers[number] = self._open_worker(number)
                    working[start(number)] = number
                elif not working and not results:
                    raise error
            if serving in done:
                serving.result()
                raise RuntimeError("servers ended before their workers")
        return [result for number in sorted(results) for result in results[number]]

    def _open_worker(self, number: int) -> Session:
        self._started += 1
        group = (
            RankGroup(1, "worker", number, f"worker{self._started}")
            if self._independent
            else RankGroup(self.placement.devices, "rank", 0, "workers")
        )
        return Session(self.placement, self._resources, group).__enter__()

    def _close_workers(self) -> None:
        for session in self._workers.values():
            session.close()

    def _run_store(self) -> PrefixStore:
        assert self._resources is not None
        return PrefixStore(_run_prefix(self._runs), PrefixStore(SHARED_PREFIX, self._resources.store))


def _raise_cause(error: BaseException, serving: Future[list[Any]], working: Iterable[Future[list[Any]]]) -> None:
    """Raise the failure of a server or of a worker that hangs, if it caused `error`."""
    if isinstance(error, RankFailed) and error.kind in SYMPTOMS:
        deadline = time.monotonic() + _SETTLE_SECONDS[error.kind]
        while not (_failed(serving) or any(map(_hung, working))) and time.monotonic() < deadline:
            time.sleep(0.05)
    for cause in (*filter(_failed, [serving]), *filter(_hung, working)):
        cause.result()


def _failed(future: Future[list[Any]]) -> bool:
    return future.done() and future.exception() is not None


def _hung(future: Future[list[Any]]) -> bool:
    error = future.exception() if future.done() else None
    return isinstance(error, RankFailed) and error.kind == "hang"


def run_with_own_keys(worker: Worker, run: int, task: Task, *args: Any) -> Any:
    """Run a task with a separate key prefix per run in the shared store."""
    return task(replace(worker, shared=PrefixStore(_run_prefix(run), worker.shared)), *args)


def _run_prefix(run: int) -> str:
    return f"run{run}"


def _with_lock(on_report: OnReport | None) -> OnReport:
    """Call `on_report` under a lock: each group reports from its own thread."""
    lock = Lock()

    def report(rank: int, value: Any) -> None:
        if on_report is not None:
            with lock:
                on_report(rank, value)

    return report
