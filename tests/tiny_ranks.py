"""Workloads whose ranks fail during training; tests name them on the command line."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from scalewise.models.workload import Workload
from tests.tiny import float32


def killed() -> Workload:
    return _failing(lambda: os.kill(os.getpid(), signal.SIGKILL))


def raises() -> Workload:
    return _failing(_raise)


def first_killed() -> Workload:
    return _failing(lambda: os.kill(os.getpid(), signal.SIGKILL), rank=0)


def out_of_memory() -> Workload:
    return _failing(_run_out_of_memory)


def hangs() -> Workload:
    return _failing(lambda: time.sleep(3600))


def _raise() -> None:
    raise ValueError("a bug in the loss")


def _run_out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def _failing(fail: Callable[[], object], rank: int = 1) -> Workload:
    """Return a workload in which one rank fails at its fourth step."""
    tiny = float32()
    calls = 0

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 4 and os.environ["SCALEWISE_RANK"] == str(rank):
            fail()
        return tiny.loss(outputs, targets)

    return replace(tiny, loss=loss)
