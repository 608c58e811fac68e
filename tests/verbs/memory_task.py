"""Training as a session runs it, on a device with less memory."""

from __future__ import annotations

import os

from scalewise.servers.server import Served
from scalewise.session.worker import Worker
from scalewise.step.room import MEMORY_LIMIT
from scalewise.training.outcome import Outcome
from scalewise.training.request import Request
from scalewise.training.serving import serve_task
from scalewise.training.task import Rank, train_task


def train_limited(worker: Rank, request: Request, limit_GB: float) -> Outcome:
    os.environ[MEMORY_LIMIT] = str(limit_GB)
    try:
        return train_task(worker, request)
    finally:
        del os.environ[MEMORY_LIMIT]


def serve_unlimited(worker: Worker, request: Request, _: float) -> Served:
    """Servers are no devices."""
    return serve_task(worker, request)
