"""Training as a session runs it on each rank."""

from __future__ import annotations

from typing import Protocol

import torch

from scalewise.engines.engine import Place
from scalewise.training.loop import Outcome, Report, train_on
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
    def report(self, told: Report, /) -> None: ...


def train_task(worker: Rank, request: Request) -> Outcome:
    return train_on(Place(worker.rank, worker.world, worker.device, worker.gpus), request, worker.report)
