"""Tasks for the tests of training: ranks import them by name."""

from __future__ import annotations

from scalewise.session.worker import Worker
from scalewise.tracing import sockets
from scalewise.training.request import Request
from scalewise.training.task import train_task


def connections_after_training(worker: Worker, request: Request) -> int:
    train_task(worker, request)
    return len(sockets.snapshot().connections)
