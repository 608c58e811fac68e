"""Tasks for the tests of sessions: ranks import them by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

from scalewise.errors import UserError
from scalewise.session.worker import Worker


def nothing(worker: Worker) -> None:
    pass


def total(worker: Worker, value: float) -> float:
    tensor = torch.tensor([value * (worker.rank + 1)], dtype=torch.float64, device=worker.device)
    dist.all_reduce(tensor)
    return float(tensor)
