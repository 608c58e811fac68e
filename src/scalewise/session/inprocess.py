"""One rank in this very process: the same interface as a session, for one device and no process group."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from scalewise.errors import RunFailed, UserError
from scalewise.session.cores import allowed_cores, core_order, cores_of, pin
from scalewise.session.devices import limit_memory, settle
from scalewise.session.failure import from_exception, to_exception
from scalewise.session.placement import Placement
from scalewise.step.allocator import keep_freed_memory


@dataclass(frozen=True)
class LocalWorker:
    """What a task sees of its rank."""

    device: torch.device
    report: Callable[[Any], None]
    gpus: int
    rank: int = 0
    world: int = 1
    shared: None = None
    timeout_seconds: float = 60.0


class InProcess:
    """On the CPU a device is one core with one thread, as on every rank: speed-ups compare like with like."""

    def __init__(self, placement: Placement) -> None:
        self.placement = settle(placement)
        self.device = torch.device("cpu" if self.placement.device_kind == "cpu" else "cuda:0")

    def __enter__(self) -> InProcess:
        self.threads, self.cores = torch.get_num_threads(), allowed_cores()
        if self.device.type == "cpu":
            keep_freed_memory()
            torch.set_num_threads(self.placement.cores_per_device)
            pin(cores_of(0, self.placement.cores_per_device, core_order(self.cores)))
        else:
            limit_memory(self.device)
        return self

    def run(
        self, task: Callable[..., Any], *arguments: Any, on_report: Callable[[int, Any], None] | None = None
    ) -> list[Any]:
        """The task's result, as the list of one rank."""
        report = (lambda told: on_report(0, told)) if on_report else (lambda _: None)
        try:
            return [task(LocalWorker(self.device, report, self.placement.devices), *arguments)]
        except (UserError, RunFailed):
            raise
        except Exception as error:
            failure = from_exception(0, error)
            _let_go(error)
            raise to_exception(failure) from error

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.threads)
        pin(sorted(self.cores))


def _let_go(error: BaseException | None) -> None:
    """Whoever keeps the error keeps no model and no activations: they would count as the next run's."""
    while error:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
