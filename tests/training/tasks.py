"""Tasks for the training tests, which ranks import by name."""

from __future__ import annotations

from scalewise.launch.worker import Worker
from scalewise.runtime import byte_counters
from scalewise.training.results import Request
from scalewise.training.tasks import train_task


def connections_after_training(worker: Worker, request: Request) -> int:
    train_task(worker, request)
    return len(byte_counters.snapshot().connections)
