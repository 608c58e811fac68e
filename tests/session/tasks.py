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

from scalewise.errors import UserError
from scalewise.session.worker import Worker
from scalewise.step.feed import Streamed


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


def count_up(worker: Worker, steps: int) -> int:
    for step in range(steps):
        worker.report({"step": step})
    return steps


def leave_note(worker: Worker) -> str:
    """Rank 0 writes, everyone reads."""
    if worker.rank == 0:
        worker.store.set("note", "hello")
    return worker.store.get("note").decode()


def fail_on(worker: Worker, rank: int, how: str) -> float:
    """One rank fails in the given way while its peers wait for it."""
    if worker.rank == rank:
        _FAILURES[how]()
    return total(worker, 1.0)


def fail_sender(worker: Worker, rank: int, how: str) -> None:
    """One rank fails in the given way while rank 0 waits for its message."""
    if worker.rank == rank:
        _FAILURES[how]()
    if worker.rank == 0:
        dist.recv(torch.zeros(1), src=rank)


def fail_idle(worker: Worker, rank: int, how: str) -> None:
    """One rank fails in the given way while its peers have finished."""
    if worker.rank == rank:
        _FAILURES[how]()


def spin(_: Worker, cpu_seconds: float) -> float:
    """Wall seconds that it takes to use so much processor time."""
    started, used = time.perf_counter(), time.process_time()
    while time.process_time() - used < cpu_seconds:
        pass
    return time.perf_counter() - started


def _raise() -> None:
    raise ValueError("learning rate is not a number\nsecond line")


def _misuse() -> None:
    raise UserError("batch cannot be 0; valid: 1 or more")


def _run_out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def _exit() -> None:
    raise SystemExit(3)


def _hang() -> None:
    time.sleep(3600)


_FAILURES: dict[str, Callable[[], None]] = {
    "raise": _raise,
    "user": _misuse,
    "oom": _run_out_of_memory,
    "exit": _exit,
    "hang": _hang,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "quit": lambda: os._exit(0),
}


def report_and_hang(worker: Worker) -> None:
    print(f"a remark of rank {worker.rank}", flush=True)
    worker.report(os.getpid())
    _hang()


def load_and_hang(worker: Worker) -> None:
    """With a loader that waits for more to do."""
    loads = Streamed(TensorDataset(torch.arange(8.0)), worker.device, workers=1, kind="stream")
    batches = loads.batches(list(torch.arange(8).split(1)))
    next(batches)
    report_and_hang(worker)


def give(_: Worker, value: torch.Tensor) -> torch.Tensor:
    return value


def quota(_: Worker) -> tuple[int, int] | None:
    """Quota and period in microseconds, as the kernel has them for this rank; None without a quota of our making."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _number, controllers, group = line.split(":", 2)
        if "scalewise" in group:
            folder = Path("/sys/fs/cgroup", "cpu" if controllers else "") / group.lstrip("/")
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            figures = " ".join((folder / name).read_text() for name in names).split()
            return int(figures[0]), int(figures[1])
    return None


def multiprocessors(worker: Worker) -> int:
    return torch.cuda.get_device_properties(worker.device).multi_processor_count
