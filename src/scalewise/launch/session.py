"""Session: start ranks, run tasks on them, end them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from scalewise.launch import rank_process
from scalewise.launch.cpu_cores import cpu_quotas
from scalewise.launch.devices import settle, slices
from scalewise.launch.elastic_agent import LOOPBACK, Agent, RankProcesses
from scalewise.launch.emulated_hosts import Host, emulate_hosts
from scalewise.launch.host_pool import HostPool, with_host_names
from scalewise.launch.placement import Placement, RankGroup
from scalewise.launch.rank_process import STOP, RankSetup
from scalewise.launch.real_hosts import real_hosts
from scalewise.launch.store import SocketStore, open_tcp_store, serve_store
from scalewise.launch.task_results import OnReport, ResultCollector
from scalewise.runtime.device_memory import MEMORY_LIMIT
from scalewise.runtime.graceful_stop import request_stop, stop_store

START_SECONDS = 120.0


@dataclass(frozen=True)
class SharedResources:
    """Store, hosts, cgroups and environment that all rank groups of a session share."""

    store: TCPStore | SocketStore
    hosts: tuple[Host, ...]
    """Emulated hosts, those of workers first, then one per server; empty without emulation."""
    quotas: Mapping[int, Path]
    environment: Mapping[str, str]


@contextmanager
def prepare_resources(placement: Placement) -> Iterator[SharedResources]:
    """Set up hosts, cgroups, slices and the store; remove them when the block or this process ends."""
    with ExitStack() as stack:
        hosts: list[Host] = []
        if run := real_hosts():
            limit = {MEMORY_LIMIT: os.environ[MEMORY_LIMIT]} if MEMORY_LIMIT in os.environ else {}
            yield SharedResources(open_tcp_store(run.pool.address, START_SECONDS), (), {}, limit)
            return
        if placement.link:
            hosts = stack.enter_context(emulate_hosts(placement.hosts + placement.servers, placement.link))
        groups = stack.enter_context(cpu_quotas(placement.slow, placement.cores_per_device))
        sliced = placement.device_kind == "slice"
        environment = stack.enter_context(slices(placement.devices, placement.slice_percent)) if sliced else {}
        limit = {MEMORY_LIMIT: os.environ[MEMORY_LIMIT]} if MEMORY_LIMIT in os.environ else {}
        store: TCPStore | SocketStore
        if placement.device_kind == "cuda":
            store = open_tcp_store(LOOPBACK, START_SECONDS)
        else:
            store = stack.enter_context(serve_store(START_SECONDS))
        yield SharedResources(store, tuple(hosts), groups, {**environment, **limit})


_CLOSE_SECONDS = 5.0


class Session:
    """Ranks that stay alive for several tasks: `with Session(placement) as session: session.run(task, *args)`.

    A task is a top-level function `task(worker, *args)` that every rank executes. A task that fails ends the session.
    """

    is_main = True
    """Whether this process prints results; False on all ranks but one under torchrun."""

    def __init__(
        self, placement: Placement, resources: SharedResources | None = None, group: RankGroup | None = None
    ) -> None:
        """Create a session of all ranks of the placement, or of one rank group that shares the resources of others."""
        self.placement = settle(placement)
        self._resources = resources
        self._group = group or RankGroup(self.placement.devices)
        self._real_hosts = real_hosts()
        if self._real_hosts:
            self._group = with_host_names(self._group, self.placement, self._real_hosts)
        self._stack = ExitStack()
        self._channels: list[Connection] = []
        self._agent: RankProcesses | None = None
        self._idle = False
        self._store: Store | None = None
        """Store in which the ranks agree on a stop."""

    def __enter__(self) -> Session:
        rank_process.refuse_nested_session()
        with ExitStack() as stack, rank_process.hide_main_script():
            resources = self._resources or stack.enter_context(prepare_resources(self.placement))
            self._store = stop_store(resources.store, self._group.name)
            rank_ends: tuple[Connection, ...] = ()
            if self._real_hosts:
                self._agent, self._channels = self._start_on_hosts(stack, resources, self._real_hosts.pool)
            else:
                setup = self._rank_setup(stack, resources)
                self._agent, rank_ends = Agent(resources.store, setup), setup.channels
            stack.callback(self._end_ranks, self._agent)
            collector = ResultCollector(self._agent, self._channels, self.placement.timeout_seconds, self._group)
            collector.allow_start(START_SECONDS)
            collector.gather()
            # Only the rank may keep its end of the pipe open, so that the channel closes when the rank ends.
            for channel in rank_ends:
                channel.close()
            self._stack = stack.pop_all()
        self._idle = True
        return self

    def run(
        self,
        task: Callable[..., Any],
        *args: Any,
        on_report: OnReport | None = None,
        seconds_left: Callable[[], float | None] | None = None,
    ) -> list[Any]:
        """Run the task on every rank and return the results in rank order.

        `on_report(rank, value)` is called for each report of a rank. After the first rank has finished, the others must
        finish or report within `placement.timeout_seconds`. `seconds_left()` gives the seconds until other groups that
        wait for these ranks time out, or None if they do not wait.
        """
        if self._agent is None or not self._idle:
            raise RuntimeError("this session is closed; open another")
        work = rank_process.packed((task, args))
        order = pickle.dumps((rank_process.script_needed_by(work), work))
        self._idle = False
        try:
            for channel in self._channels:
                with suppress(ConnectionError):  # the rank has died; `gather` reports how
                    channel.send_bytes(order)
            timeout_seconds = self.placement.timeout_seconds
            collector = ResultCollector(self._agent, self._channels, timeout_seconds, self._group, seconds_left)
            results = collector.gather(on_report)
        except BaseException:
            self.close()
            raise
        self._idle = True
        return results

    @property
    def is_open(self) -> bool:
        return self._agent is not None

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks, in rank order."""
        return [] if self._agent is None else self._agent.pids

    def request_stop(self) -> None:
        """Request that the ranks save and end the task after the current step."""
        assert self._store is not None
        request_stop(self._store, range(self._group.count))

    def abort(self) -> None:
        """Kill every rank; a `run` in another thread then raises and closes the session."""
        agent = self._agent
        if agent is not None:
            agent.kill()

    def close(self) -> None:
        """End every rank and remove their resources; a second call has no effect."""
        self._stack.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_on_hosts(
        self, stack: ExitStack, resources: SharedResources, pool: HostPool
    ) -> tuple[RankProcesses, list[Connection]]:
        assert isinstance(resources.store, TCPStore)  # of a run on real hosts
        ranks = pool.start(self.placement, self._group, resources.store, resources.environment, START_SECONDS)
        for channel in ranks.channels:
            stack.callback(channel.close)
        return ranks, ranks.channels

    def _rank_setup(self, stack: ExitStack, resources: SharedResources) -> RankSetup:
        pipes = [Pipe() for _ in range(self._group.count)]
        for pipe in pipes:
            for end in pipe:
                stack.callback(end.close)
        self._channels = [launcher_end for launcher_end, _ in pipes]
        rank_ends = tuple(rank_end for _, rank_end in pipes)
        store = resources.store.path if isinstance(resources.store, SocketStore) else None
        return RankSetup(
            self.placement, self._group, rank_ends, resources.hosts, resources.quotas, resources.environment, store
        )

    def _end_ranks(self, agent: RankProcesses) -> None:
        self._agent = None
        if self._idle:
            self._idle = False
            for channel in self._channels:
                with suppress(ConnectionError):
                    channel.send_bytes(STOP)
            if agent.join(_CLOSE_SECONDS):
                return
        agent.kill()
