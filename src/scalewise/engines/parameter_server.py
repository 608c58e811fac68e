"""Engine of a parameter-server worker."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn

from scalewise.engines.base import EagerEngine, Engine, Job
from scalewise.models.parameters import make_model, refuse_unreached
from scalewise.parameter_server.checkpoints import Beside
from scalewise.parameter_server.client import FIRST_STEP, Client
from scalewise.runtime.feed import Feed, kept_bytes, make_feed
from scalewise.runtime.optimizers import refuse_unless_elementwise
from scalewise.strategies.base import Strategy
from scalewise.strategies.parameter_server import ParameterServer
from scalewise.strategies.parameter_server_async import ParameterServerAsync


def build(strategy: Strategy, job: Job) -> Engine:
    """Build a synchronous worker, which the asynchronous strategy also uses if it allows no staleness."""
    model, feed, client = join_servers(strategy, job)
    return WorkerEngine(job, model, feed, client)


def join_servers(strategy: Strategy, job: Job) -> tuple[nn.Module, Feed, Client]:
    """Connect to the servers; return the model with their weights, the data feed and the connection."""
    assert isinstance(strategy, (ParameterServer, ParameterServerAsync))
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


class WorkerEngine(EagerEngine):
    """Engine of a synchronous worker.

    Losses are weighted by sample counts, so that the sum on the servers is the gradient of the global batch.
    """

    def __init__(self, job: Job, model: nn.Module, feed: Feed, client: Client) -> None:
        super().__init__(job, model, feed)
        self.optimizer = None
        self.client = client
        assert job.place.store is not None
        self.worker_states = Beside(job.place.store, job.place.world)
        self.done = self.began_at = int(job.place.store.get(FIRST_STEP))

    @property
    def server_client(self) -> Client:
        return self.client

    def close(self) -> None:
        settings = self.job.settings
        was_due = settings.saves_after(self.done, len(self.job.data))
        if settings.checkpoint and self.done > self.began_at and not was_due:
            self.worker_states.tell(self.model, self.done, self.job.place.rank)  # stopped before the last step
        self.client.leave()

    def _sync_if_last(self, last: bool) -> AbstractContextManager[None]:
        if last:
            self.client.begin(1)
        return nullcontext()

    def _update(self) -> None:
        if unreached := self.client.unreached():
            refuse_unreached(self.model, unreached)
        self.done += 1
        if self.job.settings.saves_after(self.done, len(self.job.data)):
            self.worker_states.tell(self.model, self.done, self.job.place.rank)
        self.client.finish_pushes()
        self.job.clock.lap("push")
        self.client.finish_pulls()
        self.job.clock.lap("pull")
