"""A session with servers: workers and servers side by side, each crew in the care of an agent of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from threading import Lock
from types import TracebackType
from typing import Any

from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from scalewise.servers.meeting import announce_end
from scalewise.session.answers import OnReport
from scalewise.session.crew import Crew
from scalewise.session.devices import settle
from scalewise.session.failure import SYMPTOMS, Kind, RankFailed
from scalewise.session.ground import Ground, prepare
from scalewise.session.placement import Placement
from scalewise.session.session import Session
from scalewise.session.silence import Silence
from scalewise.session.worker import SHARED, Worker

# A dead server makes workers fail of a lost connection: the news of its death may come after theirs.
_SETTLE_SECONDS = 3.0
_GONE: frozenset[Kind] = frozenset({"died", "lost"})
"""What an asynchronous worker may suffer and the others go on; one that raises or hangs fails the run."""
Task = Callable[..., Any]


class ServedSession:
    """Used like a Session: `run(task, *args)` is the workers' task; servers do `serve(worker, *args)` meanwhile.

    `independent`: every worker is a crew of its own, so that one that dies is dropped, or replaced, and the rest go on.
    """

    is_main = True

    def __init__(self, placement: Placement, serve: Task, *, independent: bool = False, replacements: int = 0) -> None:
        self.placement = settle(placement)
        self.served: list[Any] = []
        """What the servers brought back from the last task."""
        self.lost: list[str] = []
        """How workers were lost in it, a sentence each."""
        self._serve = serve
        self._independent = independent
        self._replacements = replacements
        self._held = ExitStack()
        self._ground: Ground | None = None
        self._servers: Session | None = None
        self._workers: dict[int, Session] = {}
        self._runs = self._started = 0

    def __enter__(self) -> ServedSession:
        with ExitStack() as held:
            self._ground = held.enter_context(prepare(self.placement))
            self._servers = Session(self.placement, self._ground, Crew(self.placement.servers, "server", 0, "servers"))
            held.enter_context(self._servers)
            numbers = range(self.placement.devices) if self._independent else [0]
            held.callback(self._close_workers)
            for number in numbers:
                self._workers[number] = self._open_worker(number)
            self._held = held.pop_all()
        return self

    def run(self, task: Task, *args: Any, on_report: OnReport | None = None) -> list[Any]:
        """Results of the workers that came through, by number."""
        servers = self._servers
        if servers is None or not self.is_open:
            raise RuntimeError("this session is closed; open another")
        self._runs += 1
        self.lost = []
        told = _one_at_a_time(on_report)
        silence = Silence(self.placement.timeout_seconds)
        with ThreadPoolExecutor(1 + self.placement.devices) as threads:
            serving = threads.submit(servers.run, in_run, self._runs, self._serve, *args)

            def start(number: int) -> Future[list[Any]]:
                def heard(rank: int, what: Any) -> None:
                    silence.report(number)
                    told(number + rank, what)

                silence.begin(number)
                left = partial(silence.seconds_left, number) if self._independent else None
                session = self._workers[number]
                return threads.submit(session.run, in_run, self._runs, task, *args, on_report=heard, seconds_left=left)

            try:
                results = self._gather(serving, {start(number): number for number in self._workers}, start, silence)
                announce_end(self._meeting())
                self.served = serving.result()
            except BaseException:
                self.abort()
                raise
        return results

    @property
    def pids(self) -> list[int]:
        """Of the workers, then of the servers."""
        sessions = [self._workers[number] for number in sorted(self._workers)]
        return [pid for session in (*sessions, self._servers) if session is not None for pid in session.pids]

    @property
    def is_open(self) -> bool:
        return bool(self._workers) and all(
            session is not None and session.is_open for session in (self._servers, *self._workers.values())
        )

    def abort(self) -> None:
        for session in (self._servers, *self._workers.values()):
            if session is not None:
                session.abort()

    def close(self) -> None:
        self._held.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _gather(
        self,
        serving: Future[list[Any]],
        working: dict[Future[list[Any]], int],
        start: Callable[[int], Future[list[Any]]],
        silence: Silence,
    ) -> list[Any]:
        results: dict[int, list[Any]] = {}
        replacements = self._replacements
        while working:
            done, _ = wait([serving, *working], return_when=FIRST_COMPLETED)
            for future in done - {serving}:
                number, error = working.pop(future), future.exception()
                if error is None:
                    results[number] = future.result()
                    silence.finish(number)
                    continue
                if isinstance(error, RankFailed) and error.kind == "timeout":
                    silence.waited(number)
                _find_the_cause(error, serving, working)
                if not self._independent or not isinstance(error, RankFailed) or error.kind not in _GONE:
                    raise error
                silence.drop(number)
                self.lost.append(f"{error}; {'another took its place' if replacements else 'the others went on'}")
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
        crew = (
            Crew(1, "worker", number, f"worker{self._started}")
            if self._independent
            else Crew(self.placement.devices, "rank", 0, "workers")
        )
        return Session(self.placement, self._ground, crew).__enter__()

    def _close_workers(self) -> None:
        for session in self._workers.values():
            session.close()

    def _meeting(self) -> PrefixStore:
        assert self._ground is not None
        return PrefixStore(_run_prefix(self._runs), PrefixStore(SHARED, self._ground.store))


def _find_the_cause(error: BaseException, serving: Future[list[Any]], working: Iterable[Future[list[Any]]]) -> None:
    """Raise the failure of the servers, or of a worker that hangs, if this one is but its consequence."""
    if isinstance(error, RankFailed) and error.kind in SYMPTOMS:
        deadline = time.monotonic() + _SETTLE_SECONDS
        while not (_failed(serving) or any(map(_hung, working))) and time.monotonic() < deadline:
            time.sleep(0.05)
    for cause in (*filter(_failed, [serving]), *filter(_hung, working)):
        cause.result()


def _failed(future: Future[list[Any]]) -> bool:
    return future.done() and future.exception() is not None


def _hung(future: Future[list[Any]]) -> bool:
    error = future.exception() if future.done() else None
    return isinstance(error, RankFailed) and error.kind == "hang"


def in_run(worker: Worker, run: int, task: Task, *args: Any) -> Any:
    """A task with keys of its own in the shared store."""
    return task(replace(worker, shared=PrefixStore(_run_prefix(run), worker.shared)), *args)


def _run_prefix(run: int) -> str:
    return f"run{run}"


def _one_at_a_time(on_report: OnReport | None) -> OnReport:
    """Reports come from a thread per crew."""
    lock = Lock()

    def told(rank: int, what: Any) -> None:
        if on_report is not None:
            with lock:
                on_report(rank, what)

    return told
