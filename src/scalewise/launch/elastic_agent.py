"""Start and watch the processes of a session with torch's elastic agent."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import util
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, Protocol
from uuid import uuid4

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from scalewise.launch.forkserver import load_for_ranks, start_error
from scalewise.launch.rank_process import RankSetup, run_rank
from scalewise.launch.store import SocketStore

LOOPBACK = "127.0.0.1"


class RankProcesses(Protocol):
    """Processes of a group of ranks: an `Agent`, or `RemoteRanks` of several hosts."""

    ended: Connection

    def exits(self) -> Mapping[int, int | str]: ...
    def has_exited_normally(self, rank: int) -> bool: ...
    def signal(self, number: signal.Signals, rank: int) -> None: ...
    @property
    def pids(self) -> list[int]: ...
    def join(self, seconds: float) -> bool: ...
    def kill(self) -> None: ...


class StoreRendezvous(RendezvousHandler):
    """Rendezvous of a single agent that hands its ranks an existing store, which other rank groups may use too."""

    def __init__(self, store: TCPStore | SocketStore, group_name: str) -> None:
        self._store = store
        self._group_name = group_name
        self._run_id = uuid4().hex

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        store = PrefixStore(f"agent/{self._group_name}", self._store)
        if isinstance(self._store, SocketStore):  # ranks connect to it by its path
            return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(LOOPBACK, 0))
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(self._store.host, self._store.port))

    def get_backend(self) -> str:
        return "scalewise"

    def get_run_id(self) -> str:
        return self._run_id

    def num_nodes_waiting(self) -> int:
        return 0

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def shutdown(self) -> bool:
        return True


_MONITOR_SECONDS = 0.05


class Agent:
    """Start the ranks, detect when one ends, and end the others."""

    def __init__(self, store: TCPStore | SocketStore, setup: RankSetup) -> None:
        _silence_elastic()
        load_for_ranks()
        spec = WorkerSpec(
            role=setup.group.role,
            local_world_size=len(setup.channels),
            rdzv_handler=StoreRendezvous(store, setup.group.name + (f"/{setup.on_host.host}" if setup.on_host else "")),
            entrypoint=run_rank,
            args=(setup,),
            max_restarts=0,
            monitor_interval=_MONITOR_SECONDS,
        )
        self._agent = _KillingAgent(spec, _Console(), start_method="forkserver", exit_barrier_timeout=1)
        self._result: RunResult | None = None
        self._error: Exception | None = None
        self.ended: Connection
        """Becomes readable when the agent and all its ranks have ended."""
        self.ended, self._still_running = multiprocessing.Pipe(duplex=False)
        self._thread = Thread(target=self._run, name="scalewise-agent", daemon=True)
        self._thread.start()

    def exits(self) -> dict[int, int | str]:
        """Exit codes of failed ranks; contains only those that torch's agent saw first."""
        if isinstance(self._error, OSError):
            raise start_error(self._error, util.get_temp_dir()) from self._error
        if self._error is not None:
            raise self._error
        return (
            {} if self._result is None else {rank: failure.exitcode for rank, failure in self._result.failures.items()}
        )

    def has_exited_normally(self, rank: int) -> bool:
        """Whether torch's agent has seen that a rank ended with exit code 0, which it takes for a success."""
        context: Any = self._agent._pcontext
        return context is not None and context._pc.processes[rank]._popen.returncode == 0

    def signal(self, number: signal.Signals, rank: int) -> None:
        _signal(self._agent.get_worker_group().workers[rank].id, number)

    @property
    def pids(self) -> list[int]:
        return [worker.id for worker in self._agent.get_worker_group().workers]

    @property
    def has_started(self) -> bool:
        """Whether the processes of all ranks exist."""
        return all(isinstance(worker.id, int) for worker in self._agent.get_worker_group().workers)

    def join(self, seconds: float) -> bool:
        """Wait for the ranks to end; return whether all ended within `seconds`."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """End all ranks with SIGKILL, which also ends stopped processes; includes ranks that are still starting."""
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


class _KillingAgent(LocalElasticAgent):
    """Agent that ends ranks with SIGKILL: they ignore SIGTERM, which schedulers send to every process of a job."""

    def _start_workers(self, *arguments: Any) -> Any:
        # torch creates a file per rank that a killed launcher leaves behind; this folder is removed in any case.
        before, tempfile.tempdir = tempfile.tempdir, util.get_temp_dir()
        try:
            ids = super()._start_workers(*arguments)
        finally:
            tempfile.tempdir = before
        context: Any = self._pcontext
        for process in context._pc.processes:
            process.terminate = process.kill  # called for the others when one has failed
        return ids

    def _shutdown(self, *_: Any, **__: Any) -> None:
        super()._shutdown(signal.SIGKILL)


class _Console(LogsSpecs):
    """Let ranks write to the launcher's own streams instead of log files."""

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
    """Turn off the agent's logging of failed ranks with tracebacks; the session reports them in one sentence."""
    for name in ("torch.distributed.elastic", "torch.multiprocessing", "torchelastic-events-null"):
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
