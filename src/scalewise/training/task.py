"""Training as a session runs it on each rank."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from scalewise.engines.engine import Place
from scalewise.strategies.parameter_server_async import ParameterServerAsync
from scalewise.training.asynchronous import train_asynchronously
from scalewise.training.loop import train_on
from scalewise.training.outcome import Outcome, Report
from scalewise.training.request import Request


class Rank(Protocol):
    """What training needs of a worker."""

    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def gpus(self) -> int: ...
    @property
    def shared(self) -> Store | None: ...
    @property
    def timeout_seconds(self) -> float: ...
    def report(self, told: Report, /) -> None: ...


def train_task(worker: Rank, request: Request) -> Outcome:
    place = Place(worker.rank, worker.world, worker.device, worker.gpus, worker.shared, worker.timeout_seconds)
    strategy = request.strategy
    if isinstance(strategy, ParameterServerAsync) and not strategy.exact:
        return train_asynchronously(place, request, strategy, worker.report)
    return train_on(place, request, worker.report)
