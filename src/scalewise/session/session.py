"""A session: ranks that are started once, given task after task, and always ended."""

from __future__ import annotations

import pickle
import shlex
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing import Pipe, util
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from scalewise.session import script
from scalewise.session.agent import Agent
from scalewise.session.answers import Answers, OnReport
from scalewise.session.devices import settle
from scalewise.session.hosts import Host, call_on, rehearse
from scalewise.session.janitor import afterwards
from scalewise.session.placement import Placement
from scalewise.session.quota import quotas
from scalewise.session.rank import STOP, Orders
from scalewise.session.rendezvous import LOOPBACK, open_store
from scalewise.session.slices import slices

_START_SECONDS = 120.0
_CLOSE_SECONDS = 5.0


class Session:
    """`with Session(placement) as session: results = session.run(task, *args)`, as many tasks as there are.

    A task is a top-level function `task(worker, *args)`; every rank executes it, and its results come back in the order
    of ranks. A task that fails ends the session.
    """

    is_main = True
    """This process is the one that prints; under torchrun all but one are not."""

    def __init__(self, placement: Placement) -> None:
        self.placement = settle(placement)
        self._held = ExitStack()
        self._channels: list[Connection] = []
        self._agent: Agent | None = None
        self._idle = False

    def __enter__(self) -> Session:
        script.refuse_a_session()
        with ExitStack() as held, script.out_of_sight():
            orders = self._prepare(held)
            store = _open_store(orders.hosts)
            self._agent = Agent(store, orders)
            held.callback(self._end_ranks, self._agent)
            opening = Answers(self._agent, self._channels, _START_SECONDS)
            opening.expect(_START_SECONDS)
            opening.gather()
            # Only the rank itself still holds its end now, so that its death closes the channel.
            for channel in orders.channels:
                channel.close()
            self._held = held.pop_all()
        self._idle = True
        return self

    def run(self, task: Callable[..., Any], *args: Any, on_report: OnReport | None = None) -> list[Any]:
        """The task's result on every rank; `on_report(rank, what)` hears what ranks report meanwhile.

        Once a rank has finished, the others must finish, or report, every `placement.timeout_seconds`.
        """
        if self._agent is None or not self._idle:
            raise RuntimeError("this session is closed; open another")
        work = pickle.dumps((task, args))
        order = pickle.dumps((script.needed_by(work), work))
        self._idle = False
        try:
            for channel in self._channels:
                with suppress(ConnectionError):  # a rank that died in the meantime: gathering finds out how
                    channel.send_bytes(order)
            results = Answers(self._agent, self._channels, self.placement.timeout_seconds).gather(on_report)
        except BaseException:
            self.close()
            raise
        self._idle = True
        return results

    @property
    def is_open(self) -> bool:
        return self._agent is not None

    def close(self) -> None:
        """End every rank and remove whatever was set up for them; does nothing the second time."""
        self._held.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self, held: ExitStack) -> Orders:
        placement = self.placement
        # The forkserver's socket lives there; Python removes it at exit, but not when it is killed.
        held.enter_context(afterwards(":", if_killed=f"rm -rf {shlex.quote(util.get_temp_dir())}"))
        rehearsed = held.enter_context(rehearse(placement.hosts, placement.link)) if placement.link else []
        groups = held.enter_context(quotas(placement.slow, placement.cores_per_device))
        sliced = placement.device_kind == "slice"
        environment = held.enter_context(slices(placement.devices, placement.slice_percent)) if sliced else {}
        pipes = [Pipe() for _ in range(placement.devices)]
        for pipe in pipes:
            for end in pipe:
                held.callback(end.close)
        self._channels = [ours for ours, _ in pipes]
        return Orders(placement, tuple(theirs for _, theirs in pipes), tuple(rehearsed), groups, environment)

    def _end_ranks(self, agent: Agent) -> None:
        self._agent = None
        if self._idle:
            self._idle = False
            for channel in self._channels:
                with suppress(ConnectionError):
                    channel.send_bytes(STOP)
            if agent.join(_CLOSE_SECONDS):
                return
        agent.kill()


def _open_store(hosts: tuple[Host, ...]) -> TCPStore:
    if not hosts:
        return open_store(LOOPBACK, _START_SECONDS)
    first = hosts[0]
    return call_on(first, lambda: open_store(first.address, _START_SECONDS))
