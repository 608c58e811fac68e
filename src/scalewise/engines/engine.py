"""What an engine is: a strategy running for real on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]

from scalewise.data.data import Data
from scalewise.step.clock import Clock
from scalewise.step.feed import Batch, Feed
from scalewise.step.settings import Settings
from scalewise.workloads.workload import Workload


@dataclass(frozen=True)
class Place:
    """Where an engine runs: its rank among how many, and on which device."""

    rank: int
    world: int
    device: torch.device
    gpus: int = 1
    """How many devices this one process drives: more than one only for torch.nn.DataParallel."""
    store: Store | None = None
    """Where ranks meet servers; None where there are none."""
    timeout_seconds: float = 60.0


@dataclass(frozen=True)
class Job:
    """All that an engine is built from."""

    workload: Workload
    data: Data
    settings: Settings
    place: Place
    clock: Clock

    @property
    def optimizer(self) -> str:
        return self.settings.optimizer or self.workload.optimizer

    @property
    def learning_rate(self) -> float:
        return self.settings.learning_rate or self.workload.learning_rate


@dataclass(frozen=True)
class Whole:
    """A model with all its weights and an optimizer with all its state, wherever their parts are while it trains."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    """None where others update: parameter servers."""


Read = Callable[[nn.Module, torch.optim.Optimizer | None], None]
"""Puts a checkpoint into a whole model and its optimizer; None where a rank has no use for one."""


class Engine(Protocol):
    """Built once per run; `start_epoch` is told the whole epoch, `step` does its next batch."""

    execution: str

    @property
    def parameter_count(self) -> int:
        """Of the whole model."""
        ...

    @property
    def feed(self) -> Feed | None:
        """None on a rank that is sent its samples."""
        ...

    @property
    def stream(self) -> int:
        """Whose random numbers it draws: its own rank, or the first of those that must draw alike."""
        ...

    def start_epoch(self, batches: list[Tensor]) -> None:
        """Rows of every global batch still to come in this epoch."""
        ...

    def step(self) -> None:
        """One update; never waits for the device."""
        ...

    def losses(self) -> Tensor:
        """The mean loss of each global batch since the last call, before its update. Waits for the device."""
        ...

    def whole(self) -> Whole | None:
        """For checkpoints: on rank 0, put together on the host if need be; None elsewhere. Every rank calls it."""
        ...

    def restore(self, read: Read) -> None:
        """Go on from a checkpoint: every rank calls it before its first step, and reads the same."""
        ...

    def predictions(self, rows: list[Tensor]) -> Iterator[Batch]:
        """(outputs, targets) of each list of rows, without learning from them, on one rank; nothing on the others.

        Every rank goes through it, because a model in parts needs them all.
        """
        ...

    def close(self) -> None:
        """No step follows."""
        ...
