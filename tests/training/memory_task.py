"""Session tasks that train under a memory limit."""

from __future__ import annotations

import os

from scalewise.launch.worker import Worker
from scalewise.parameter_server.server import Served
from scalewise.runtime.device_memory import MEMORY_LIMIT
from scalewise.training.results import Outcome, Request
from scalewise.training.tasks import Rank, serve_task, train_task


def train_limited(worker: Rank, request: Request, limit_GB: float) -> Outcome:
    os.environ[MEMORY_LIMIT] = str(limit_GB)
    try:
        return train_task(worker, request)
    finally:
        del os.environ[MEMORY_LIMIT]


def serve_unlimited(worker: Worker, request: Request, _: float) -> Served:
    """Serve without the limit: the memory limit applies to devices, and servers run on the host."""
    return serve_task(worker, request)
