"""Tasks for the tests of sessions: ranks import them by name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from scalewise.core.errors import UserError
from scalewise.launch.worker import Worker
from scalewise.parameter_server.client import arrivals
from scalewise.runtime.feed import Streamed


def nothing(_: Worker) -> None:
    pass


def total(worker: Worker, value: float) -> float:
    tensor = torch.tensor([value * (worker.rank + 1)], dtype=torch.float64, device=worker.device)
    dist.all_reduce(tensor)
    return float(tensor)


def where(worker: Worker) -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "rank": worker.rank,
        "world": worker.world,
        "device": str(worker.device),
        "backend": worker.backend,
        "group": dist.get_backend(),
        "host": worker.host,
        "cores": sorted(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "namespace": Path("/proc/self/ns/net").readlink().name,
    }


def serve(worker: Worker) -> dict[str, object]:
    """Wait like a parameter server until all workers have left."""
    for _ in arrivals(worker.shared):
        pass
    return where(worker)


def count_up(worker: Worker, steps: int) -> int:
    for step in range(steps):
        worker.report({"step": step})
    return steps


def leave_note(worker: Worker) -> str:
    """Write a value to the store on rank 0 and read it on every rank."""
    if worker.rank == 0:
        worker.store.set("note", "hello")
    return worker.store.get("note").decode()


def fail_on(worker: Worker, rank: int, how: str) -> float:
    """Fail on one rank while its peers wait for it in an all-reduce."""
    if worker.rank == rank:
        _FAILURES[how]()
    return total(worker, 1.0)


def fail_sender(worker: Worker, rank: int, how: str) -> None:
    """Fail on one rank while rank 0 waits to receive from it."""
    if worker.rank == rank:
        _FAILURES[how]()
    if worker.rank == 0:
        dist.recv(torch.zeros(1), src=rank)


def fail_idle(worker: Worker, rank: int, how: str) -> None:
    """Fail on one rank while its peers finish."""
    if worker.rank == rank:
        _FAILURES[how]()


def spin(_: Worker, cpu_seconds: float) -> float:
    """Return the wall-clock seconds that it takes to use `cpu_seconds` of processor time."""
    started, used = time.perf_counter(), time.process_time()
    while time.process_time() - used < cpu_seconds:
        pass
    return time.perf_counter() - started


def _raise() -> None:
    raise ValueError("learning rate is not a number\nsecond line")


def _raise_user_error() -> None:
    raise UserError("batch cannot be 0; valid: 1 or more")


def _run_out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def _exit() -> None:
    raise SystemExit(3)


def _hang() -> None:
    time.sleep(3600)


_FAILURES: dict[str, Callable[[], None]] = {
    "raise": _raise,
    "user": _raise_user_error,
    "oom": _run_out_of_memory,
    "exit": _exit,
    "hang": _hang,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "quit": lambda: os._exit(0),
}


def report_and_hang(worker: Worker) -> None:
    print(f"output of rank {worker.rank}", flush=True)
    worker.report(os.getpid())
    _hang()


def load_and_hang(worker: Worker) -> None:
    """Hang while a data loader process waits for work."""
    loader = Streamed(TensorDataset(torch.arange(8.0)), worker.device, workers=1, kind="stream")
    batches = loader.batches(list(torch.arange(8).split(1)))
    next(batches)
    report_and_hang(worker)


def return_value(_: Worker, value: torch.Tensor) -> torch.Tensor:
    return value


def quota(_: Worker) -> tuple[int, int] | None:
    """Return this rank's CPU quota and period in microseconds; None outside a cgroup of Scalewise."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _number, controllers, group = line.split(":", 2)
        if "scalewise" in group:
            folder = Path("/sys/fs/cgroup", "cpu" if controllers else "") / group.lstrip("/")
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            limits = " ".join((folder / name).read_text() for name in names).split()
            return int(limits[0]), int(limits[1])
    return None


def multiprocessors(worker: Worker) -> int:
    return torch.cuda.get_device_properties(worker.device).multi_processor_count
