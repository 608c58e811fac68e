"""The processes of a session, in the care of torch's own elastic agent, which runs in a thread of the launcher."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Thread

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from scalewise.session.preload import load_for_ranks
from scalewise.session.rank import Orders, live
from scalewise.session.rendezvous import StoreRendezvous

_MONITOR_SECONDS = 0.05


class Agent:
    """Starts the ranks, notices when one ends, and ends the rest."""

    def __init__(self, store: TCPStore, orders: Orders) -> None:
        _silence_elastic()
        load_for_ranks()
        spec = WorkerSpec(
            role=orders.crew.role,
            local_world_size=orders.crew.count,
            rdzv_handler=StoreRendezvous(store, orders.crew.name),
            entrypoint=live,
            args=(orders,),
            max_restarts=0,
            monitor_interval=_MONITOR_SECONDS,
        )
        self._agent = LocalElasticAgent(spec, _Console(), start_method="forkserver", exit_barrier_timeout=1)
        self._result: RunResult | None = None
        self._error: Exception | None = None
        self.ended: Connection
        """Readable once the agent has ended, and with it every rank."""
        self.ended, self._still_running = multiprocessing.Pipe(duplex=False)
        self._thread = Thread(target=self._run, name="scalewise-agent", daemon=True)
        self._thread.start()

    def exits(self) -> dict[int, int]:
        """Exit codes of ranks that ended badly; only the first to be noticed is known."""
        if self._error is not None:
            raise self._error
        return (
            {} if self._result is None else {rank: failure.exitcode for rank, failure in self._result.failures.items()}
        )

    def signal(self, number: signal.Signals, rank: int) -> None:
        _signal(self._agent.get_worker_group().workers[rank].id, number)

    @property
    def pids(self) -> list[int]:
        return [worker.id for worker in self._agent.get_worker_group().workers]

    def join(self, seconds: float) -> bool:
        """Whether all ranks ended by themselves in time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """SIGKILL, because a stopped or stuck process hears nothing else; ranks still being started get it too."""
        deadline = time.monotonic() + 30
        killed: set[int] = set()
        while not self.join(0.02) and time.monotonic() < deadline:
            for worker in self._agent.get_worker_group().workers:
                if isinstance(worker.id, int) and worker.id not in killed:
                    killed.add(worker.id)
                    _signal(worker.id, signal.SIGKILL)

    def _run(self) -> None:
        try:
            self._result = self._agent.run()
        except Exception as error:
            self._error = error
        finally:
            self._still_running.close()


class _Console(LogsSpecs):
    """Ranks write where the launcher does; no files, so none to remove."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        return LogsDest(
            stdouts=dict.fromkeys(envs, ""),
            stderrs=dict.fromkeys(envs, ""),
            error_files=dict.fromkeys(envs, os.devnull),
        )

    @property
    def root_log_dir(self) -> str:
        return os.devnull


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _silence_elastic() -> None:
    """The agent logs every end of a rank with a traceback of its own; the session says it in one sentence."""
    for name in ("torch.distributed.elastic", "torch.multiprocessing", "torchelastic-events-null"):
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
