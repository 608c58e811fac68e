"""Sessions that start no processes: one rank in the calling process, or the ranks that torchrun started."""

from __future__ import annotations

import itertools
import os
import platform
import select
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from scalewise.core.errors import Failure, RunFailed, UserError
from scalewise.launch.cpu_cores import allowed_cores, core_order, cores_for_rank, pin
from scalewise.launch.devices import limit_memory, settle
from scalewise.launch.placement import Placement, RankGroup
from scalewise.launch.rank_failure import SYMPTOMS, first_cause, from_exception, from_exit, from_hang, to_exception
from scalewise.launch.task_results import OnReport
from scalewise.launch.worker import Worker, join_process_group, take_device
from scalewise.runtime.exchange import all_gather_values, from_bytes, to_bytes
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


_SETTLE_SECONDS = 0.5
"""Time in which a cause that is older than the first known one may still become known."""
_SYMPTOM_SECONDS = 6.0
"""Longest search for the cause of a broken connection or a timeout; torchrun kills the ranks after 30 s."""
_numbers = itertools.count()
"""Numbers of the sessions of this process; all ranks open the same sessions."""


class PeerWatch:
    """Finds the first cause when ranks of torchrun fail, because no launcher of Scalewise sees them end.

    A rank that fails writes its failure to the store. A rank that is killed cannot: the ranks on its host watch its
    process and write how it ended.
    """

    def __init__(self, worker: Worker) -> None:
        self._rank, self._timeout_seconds = worker.rank, worker.timeout_seconds
        self._store = PrefixStore(f"peers/{next(_numbers)}", worker.store)
        boot, namespace = Path("/proc/sys/kernel/random/boot_id").read_text(), Path("/proc/self/ns/pid").readlink()
        machine = f"{platform.node()} {boot} {namespace}"
        peers = all_gather_values((platform.node(), machine, os.getpid()))
        self._group = RankGroup(len(peers), hosts=tuple(name for name, *_ in peers))
        self._ended: dict[int, Failure] = {}
        self._processes: dict[int, tuple[int, int]] = {}
        """File descriptor of a process -> its rank and process id."""
        for rank, (_, where, pid) in enumerate(peers):
            if where == machine and rank != self._rank:
                with suppress(OSError):  # has ended already
                    self._processes[os.pidfd_open(pid)] = rank, pid
        self._wake, self._closing = os.pipe()
        # Waiting for the store blocks a client, so the thread has its own.
        store = self._store.clone()  # type: ignore[attr-defined]
        arguments = (store, dict(self._processes))
        self._thread = threading.Thread(target=self._watch, args=arguments, daemon=True, name="scalewise-peers")
        self._thread.start()

    def close(self) -> None:
        """End the watch, before ranks end because their work is done."""
        os.close(self._closing)
        self._thread.join()
        for descriptor in (self._wake, *self._processes):
            os.close(descriptor)

    def failure(self, error: BaseException) -> Failure:
        """Return the first cause of an error of this rank, as far as all ranks know it."""
        own = from_exception(self._rank, error, self._group.process_name(self._rank))
        self._write(self._store, own, has_ended=False)
        if own.kind not in SYMPTOMS:
            return own
        deadline, settled = monotonic() + _SYMPTOM_SECONDS, None
        while True:
            known = self._known() | {self._rank: own}
            causes = [failure for failure in known.values() if failure.kind not in SYMPTOMS]
            now = monotonic()
            if causes and settled is None:
                settled = now + _SETTLE_SECONDS
            if now > deadline or (settled is not None and now > settled):
                break
            sleep(0.05)
        silent = [rank for rank in range(self._group.count) if rank not in known]
        if causes or not silent:
            return first_cause(causes or list(known.values()))
        if own.kind == "timeout":
            return from_hang(silent, self._timeout_seconds, "", self._group)
        return from_exit(silent[0], "it does not answer", self._group.process_name(silent[0]))

    def _known(self) -> dict[int, Failure]:
        """Return the failures of all ranks; what a rank wrote itself says more than how its process ended."""
        ended, failed = dict(self._ended), dict[int, Failure]()
        with suppress(RuntimeError):  # the store is gone with the rank or agent that served it
            for number in range(1, self._store.add("count", 0) + 1):
                if self._store.check([f"entry/{number}"]):
                    has_ended, failure = from_bytes(bytes(self._store.get(f"entry/{number}")))
                    (ended if has_ended else failed)[failure.rank] = failure
        return ended | failed

    def _watch(self, store: Store, processes: dict[int, tuple[int, int]]) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for descriptor in processes:
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._wake:
                    return
                poll.unregister(descriptor)
                rank, pid = processes[descriptor]
                failure = from_exit(rank, _exit_code(pid), self._group.process_name(rank))
                self._ended[rank] = failure
                self._write(store, failure, has_ended=True)

    def _write(self, store: Store, failure: Failure, *, has_ended: bool) -> None:
        entry = to_bytes((has_ended, replace(failure, details=failure.details[-_MOST_DETAILS:])))
        with suppress(RuntimeError):  # the store is gone with the rank or agent that served it
            store.set(f"entry/{store.add('count', 1)}", entry)  # type: ignore[arg-type] # bytes are accepted


_MOST_DETAILS = 20_000


def _exit_code(pid: int) -> int | None:
    """Return the exit code of a process that has ended, negative for a signal; None if torchrun has collected it."""
    try:
        status = int(Path(f"/proc/{pid}/stat").read_text().split()[-1])
    except OSError:
        return None
    return os.waitstatus_to_exitcode(status)


class TorchrunSession:
    """Session of the ranks that torchrun started; every rank runs the caller's code, and only `is_main` prints."""

    def __init__(self, placement: Placement) -> None:
        self.placement = _resolve_placement(placement)
        self.is_main = os.environ["RANK"] == "0"
        self._worker: Worker | None = None
        self._peers: PeerWatch | None = None

    def __enter__(self) -> TorchrunSession:
        local_rank, local_world = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        device = take_device(self.placement, local_rank, local_world)
        host = int(os.environ.get("GROUP_RANK", "0"))
        self._worker = join_process_group(self.placement, device, host, _ignore, RankGroup(self.placement.devices))
        self._peers = PeerWatch(self._worker)
        return self

    def run(self, task: Callable[..., Any], *args: Any, on_report: OnReport | None = None) -> list[Any]:
        """Return the results of all ranks, on every rank; `on_report` receives the reports of the main rank only."""
        if self._worker is None or self._peers is None:
            raise RuntimeError("this session is not open; use it in a with statement")
        report = (lambda value: on_report(0, value)) if on_report and self.is_main else _ignore
        try:
            results = all_gather_values(task(replace(self._worker, report=report), *args))
        except Exception as error:
            raise to_exception(self._peers.failure(error)) from error
        return results

    def request_stop(self) -> None:
        """Request that all ranks end the task after the current step."""
        if self._worker is not None:
            # In a thread, because a signal handler must not wait for the store.
            threading.Thread(target=self._worker.stop.request, daemon=True).start()

    def close(self) -> None:
        if self._peers is not None:
            self._peers.close()
            self._peers = None
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
