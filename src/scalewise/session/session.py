"""A session: ranks that are started once, given task after task, and always ended."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from scalewise.session import script
from scalewise.session.agent import Agent
from scalewise.session.answers import Answers, OnReport
from scalewise.session.crew import Crew
from scalewise.session.devices import settle
from scalewise.session.ground import START_SECONDS, Ground, prepare
from scalewise.session.placement import Placement
from scalewise.session.rank import STOP, Orders

_CLOSE_SECONDS = 5.0


class Session:
    """`with Session(placement) as session: results = session.run(task, *args)`, as many tasks as there are.

    A task is a top-level function `task(worker, *args)`; every rank executes it, and its results come back in the order
    of ranks. A task that fails ends the session.
    """

    is_main = True
    """This process is the one that prints; under torchrun all but one are not."""

    def __init__(self, placement: Placement, ground: Ground | None = None, crew: Crew | None = None) -> None:
        """Alone, it prepares its own ground for all ranks of the placement; else it is one crew of several."""
        self.placement = settle(placement)
        self._ground = ground
        self._crew = crew or Crew(self.placement.devices)
        self._held = ExitStack()
        self._channels: list[Connection] = []
        self._agent: Agent | None = None
        self._idle = False

    def __enter__(self) -> Session:
        script.refuse_a_session()
        with ExitStack() as held, script.out_of_sight():
            ground = self._ground or held.enter_context(prepare(self.placement))
            orders = self._orders(held, ground)
            self._agent = Agent(ground.store, orders)
            held.callback(self._end_ranks, self._agent)
            opening = Answers(self._agent, self._channels, self.placement.timeout_seconds, self._crew)
            opening.expect(START_SECONDS)
            opening.gather()
            # Only the rank itself still holds its end now, so that its death closes the channel.
            for channel in orders.channels:
                channel.close()
            self._held = held.pop_all()
        self._idle = True
        return self

    def run(
        self,
        task: Callable[..., Any],
        *args: Any,
        on_report: OnReport | None = None,
        seconds_left: Callable[[], float | None] | None = None,
    ) -> list[Any]:
        """The task's result on every rank; `on_report(rank, what)` hears what ranks report meanwhile.

        Once a rank has finished, the others must finish, or report, every `placement.timeout_seconds`; `seconds_left`:
        until those of other crews have waited for these as long, None while they do not wait.
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
            timeout_seconds = self.placement.timeout_seconds
            answers = Answers(self._agent, self._channels, timeout_seconds, self._crew, seconds_left)
            results = answers.gather(on_report)
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
        """Of the ranks, in their order."""
        return [] if self._agent is None else self._agent.pids

    def abort(self) -> None:
        """End every rank at once; a `run` under way in another thread then raises, and closes the session."""
        agent = self._agent
        if agent is not None:
            agent.kill()

    def close(self) -> None:
        """End every rank and remove whatever was set up for them; does nothing the second time."""
        self._held.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _orders(self, held: ExitStack, ground: Ground) -> Orders:
        pipes = [Pipe() for _ in range(self._crew.count)]
        for pipe in pipes:
            for end in pipe:
                held.callback(end.close)
        self._channels = [ours for ours, _ in pipes]
        theirs = tuple(end for _, end in pipes)
        return Orders(self.placement, self._crew, theirs, ground.hosts, ground.quotas, ground.environment)

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
