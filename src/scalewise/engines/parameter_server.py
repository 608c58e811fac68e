"""A worker of parameter servers: the plain loop, with pushes and pulls in place of the update."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn

from scalewise.engines.eager import EagerEngine
from scalewise.engines.engine import Engine, Job
from scalewise.errors import UserError
from scalewise.servers.beside import Beside
from scalewise.servers.client import Client
from scalewise.servers.meeting import FIRST_STEP
from scalewise.step.feed import Feed, kept_bytes, make_feed
from scalewise.step.left_out import make_model, refuse_unreached
from scalewise.step.optimizers import refuse_unless_elementwise
from scalewise.strategies.parameter_server import ParameterServer
from scalewise.strategies.parameter_server_async import ParameterServerAsync


def build(strategy: ParameterServer | ParameterServerAsync, job: Job) -> Engine:
    """Synchronous: also what the asynchronous strategy is when it allows no staleness."""
    model, feed, client = join_servers(strategy, job)
    return ServedEngine(job, model, feed, client)


def join_servers(strategy: ParameterServer | ParameterServerAsync, job: Job) -> tuple[nn.Module, Feed, Client]:
    """The model with the servers' weights, and the way to them."""
    if job.settings.execution == "graph":
        raise UserError("--execution graph is not possible: steps between ranks cannot be captured; use eager or auto")
    refuse_unless_elementwise(job.optimizer, "parameter servers")
    place = job.place
    assert place.store is not None
    model = make_model(job.workload, job.data)
    feed = make_feed(job.data, job.settings.load, place.device, kept_bytes(model, None))
    model = model.to(place.device)
    client = Client(
        model,
        place.store,
        place.rank,
        strategy.servers,
        strategy.piece_MB,
        place.timeout_seconds,
        whole_pushes=not strategy.exact,
    )
    return model, feed, client


class ServedEngine(EagerEngine):
    """Shards' losses are weighted by their samples, so that the servers' sum is the gradient of the whole batch."""

    def __init__(self, job: Job, model: nn.Module, feed: Feed, client: Client) -> None:
        super().__init__(job, model, feed)
        self.optimizer = None
        self.client = client
        assert job.place.store is not None
        self.beside = Beside(job.place.store, job.place.world)
        self.done = int(job.place.store.get(FIRST_STEP))

    def close(self) -> None:
        self.client.leave()

    def _last_part(self, last: bool) -> AbstractContextManager[None]:
        if last:
            self.client.begin(1)
        return nullcontext()

    def _update(self) -> None:
        if unreached := self.client.unreached():
            refuse_unreached(self.model, unreached)
        self.done += 1
        if self.job.settings.saves_after(self.done, len(self.job.data)):
            self.beside.tell(self.model, self.done, self.job.place.rank)
        self.client.finish_pushes()
        self.job.clock.lap("push")
        self.client.finish_pulls()
        self.job.clock.lap("pull")
