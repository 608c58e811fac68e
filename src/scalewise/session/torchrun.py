"""A session for a process that torchrun has already made a rank: the same task, on this rank, results from all."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from scalewise.errors import UserError
from scalewise.session.answers import OnReport
from scalewise.session.crew import Crew
from scalewise.session.failure import from_exception, to_exception
from scalewise.session.placement import Placement
from scalewise.session.worker import Worker, join, take_device

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def under_torchrun() -> bool:
    """Whether this process was started as one rank of several."""
    return all(name in os.environ for name in _VARIABLES)


def is_main_process() -> bool:
    """Whether this process is the one that prints: any but torchrun's ranks above 0."""
    return not under_torchrun() or os.environ["RANK"] == "0"


class TorchrunSession:
    """Used like a Session; every rank runs the caller's code, and the one with `is_main` speaks for all."""

    def __init__(self, placement: Placement) -> None:
        self.placement = _settle(placement)
        self.is_main = os.environ["RANK"] == "0"
        self._worker: Worker | None = None

    def __enter__(self) -> TorchrunSession:
        local_rank, local_world = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        device = take_device(self.placement, local_rank, local_world)
        host = int(os.environ.get("GROUP_RANK", "0"))
        self._worker = join(self.placement, device, host, _unheard, Crew(self.placement.devices))
        return self

    def run(self, task: Callable[..., Any], *args: Any, on_report: OnReport | None = None) -> list[Any]:
        """Every rank's result, on every rank; of the reports, the main rank's own are heard."""
        if self._worker is None:
            raise RuntimeError("this session is not open; use it in a with statement")
        report = (lambda told: on_report(0, told)) if on_report and self.is_main else _unheard
        results: list[Any] = [None] * self._worker.world
        try:
            dist.all_gather_object(results, task(replace(self._worker, report=report), *args))
        except Exception as error:
            raise to_exception(from_exception(self._worker.rank, error)) from error
        return results

    def close(self) -> None:
        if self._worker is not None:
            self._worker = None
            dist.destroy_process_group()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error the peers may never answer: torchrun ends them when this process does.
        if error is None:
            self.close()


def _settle(placement: Placement) -> Placement:
    world, local_world = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if placement.devices not in (1, world):
        raise UserError(f"torchrun started {world} ranks, not {placement.devices}; leave --devices out or say {world}")
    if placement.hosts > 1:
        raise UserError(f"under torchrun hosts are real, {placement.hosts} cannot be rehearsed; leave --hosts out")
    if placement.slow or placement.device_kind == "slice":
        raise UserError("slow ranks and slices exist on one machine only, without torchrun; leave --slow and slice out")
    gpus, kind = torch.cuda.device_count(), placement.device_kind
    if kind == "auto":
        kind = "cuda" if gpus >= local_world else "cpu"
    if kind == "cuda" and gpus < local_world:
        raise UserError(
            f"torchrun started {local_world} rank{'s' if local_world > 1 else ''} here and this machine has {gpus} "
            f"CUDA device{'' if gpus == 1 else 's'}; use --device-kind cpu"
        )
    hosts = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    return replace(placement, devices=world, device_kind=kind, hosts=hosts)


def _unheard(_: object) -> None:
    pass
