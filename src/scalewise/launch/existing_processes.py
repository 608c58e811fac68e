"""Sessions that start no processes: one rank in the calling process, or the ranks that torchrun started."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from scalewise.core.errors import RunFailed, UserError
from scalewise.launch.cpu_cores import allowed_cores, core_order, cores_for_rank, pin
from scalewise.launch.devices import limit_memory, settle
from scalewise.launch.failure import from_exception, to_exception
from scalewise.launch.placement import Placement, RankGroup
from scalewise.launch.task_results import OnReport
from scalewise.launch.worker import Worker, join_process_group, take_device
from scalewise.runtime.exchange import all_gather_values
from scalewise.runtime.graceful_stop import GracefulStop
from scalewise.runtime.process_settings import keep_freed_memory


@dataclass(frozen=True)
class LocalWorker:
    """Rank, device and report function of a task in the calling process."""

    device: torch.device
    report: Callable[[Any], None]
    gpus: int
    rank: int = 0
    world: int = 1
    shared: None = None
    timeout_seconds: float = 60.0
    stop: GracefulStop = field(default_factory=GracefulStop)


class InProcess:
    """Session of one rank in the calling process.

    On the CPU it is limited to the cores and threads of one device, as every rank is, so that speedups compare equal
    devices.
    """

    def __init__(self, placement: Placement) -> None:
        self.placement = settle(placement)
        self.device = torch.device("cpu" if self.placement.device_kind == "cpu" else "cuda:0")
        self._stop = GracefulStop()

    def __enter__(self) -> InProcess:
        self.threads, self.cores = torch.get_num_threads(), allowed_cores()
        if self.device.type == "cpu":
            keep_freed_memory()
            torch.set_num_threads(self.placement.cores_per_device)
            pin(cores_for_rank(0, self.placement.cores_per_device, core_order(self.cores)))
        else:
            limit_memory(self.device)
        return self

    def run(
        self, task: Callable[..., Any], *arguments: Any, on_report: Callable[[int, Any], None] | None = None
    ) -> list[Any]:
        """Run the task and return its result in a list of one."""
        report = (lambda value: on_report(0, value)) if on_report else (lambda _: None)
        try:
            worker = LocalWorker(self.device, report, self.placement.devices, stop=self._stop)
            return [task(worker, *arguments)]
        except (UserError, RunFailed):
            raise
        except Exception as error:
            failure = from_exception(0, error)
            _clear_frames(error)
            raise to_exception(failure) from error

    def request_stop(self) -> None:
        """Request that the task ends after its current step."""
        self._stop.request()

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.threads)
        pin(sorted(self.cores))


def _clear_frames(error: BaseException | None) -> None:
    """Drop the local variables of the traceback: model and activations would count in the memory of the next run."""
    while error:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class TorchrunSession:
    """Session of the ranks that torchrun started; every rank runs the caller's code, and only `is_main` prints."""

    def __init__(self, placement: Placement) -> None:
        self.placement = _resolve_placement(placement)
        self.is_main = os.environ["RANK"] == "0"
        self._worker: Worker | None = None

    def __enter__(self) -> TorchrunSession:
        local_rank, local_world = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        device = take_device(self.placement, local_rank, local_world)
        host = int(os.environ.get("GROUP_RANK", "0"))
        self._worker = join_process_group(self.placement, device, host, _ignore, RankGroup(self.placement.devices))
        return self

    def run(self, task: Callable[..., Any], *args: Any, on_report: OnReport | None = None) -> list[Any]:
        """Return the results of all ranks, on every rank; `on_report` receives the reports of the main rank only."""
        if self._worker is None:
            raise RuntimeError("this session is not open; use it in a with statement")
        report = (lambda value: on_report(0, value)) if on_report and self.is_main else _ignore
        try:
            results = all_gather_values(task(replace(self._worker, report=report), *args))
        except Exception as error:
            raise to_exception(from_exception(self._worker.rank, error)) from error
        return results

    def request_stop(self) -> None:
        """Request that all ranks end the task after the current step."""
        if self._worker is not None:
            # In a thread, because a signal handler must not wait for the store.
            threading.Thread(target=self._worker.stop.request, daemon=True).start()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.stop.close()
            self._worker = None
            dist.destroy_process_group()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error the peers may never answer; torchrun ends them when this process ends.
        if error is None:
            self.close()


def _resolve_placement(placement: Placement) -> Placement:
    world, local_world = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if placement.devices not in (1, world):
        raise UserError(
            f"torchrun started {world} ranks, not {placement.devices}; leave --devices out or set it to {world}"
        )
    if placement.hosts > 1:
        raise UserError(
            f"{placement.hosts} hosts cannot be emulated under torchrun, which has real ones; leave --hosts out"
        )
    if placement.slow or placement.device_kind == "slice":
        raise UserError(
            "slow ranks and slices are not available under torchrun; leave out --slow and --device-kind slice"
        )
    gpus, kind = torch.cuda.device_count(), placement.device_kind
    if kind == "auto":
        kind = "cuda" if gpus >= local_world else "cpu"
    if kind == "cuda" and gpus < local_world:
        raise UserError(
            f"torchrun started {local_world} rank{'s' if local_world > 1 else ''} here and this machine has {gpus} "
            f"CUDA device{'' if gpus == 1 else 's'}; use --device-kind cpu"
        )
    hosts = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    ranks_on = tuple(rank * hosts // world for rank in range(world))
    return replace(placement, devices=world, device_kind=kind, hosts=hosts, ranks_on=ranks_on)


def _ignore(_: object) -> None:
    pass
