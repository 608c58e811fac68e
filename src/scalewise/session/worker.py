"""One rank as a task sees it: its number, its device, its process group, and a way to report."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from scalewise.session.cores import allowed_cores, core_order, cores_of, pin
from scalewise.session.crew import Crew
from scalewise.session.devices import limit_memory
from scalewise.session.placement import Placement
from scalewise.step.allocator import keep_freed_memory
from scalewise.step.gloo_threads import let_senders_finish

# Ranks that start on a busy machine may be far apart: the placement's timeout counts once all are here.
_JOIN_SECONDS = 120.0
WAITS_FOR_OTHERS = "waits for others"
"""Told by a rank that has come to where ranks meet."""
SHARED = "shared"
"""Prefix of the keys that all crews see."""


@dataclass(frozen=True)
class Worker:
    """What every task is given; the default process group is ready."""

    rank: int
    world: int
    device: torch.device
    backend: str
    """Of the process group: 'nccl' between GPUs, 'gloo' everywhere else."""
    host: int
    """Number of the host that the rank lives on."""
    store: Store
    """Shared by the ranks of the group, for tasks that need more than collectives; clear of the group's own keys."""
    shared: Store
    """Shared by all crews of a session: where workers and servers meet."""
    workers: int
    """Devices that train, over all crews."""
    timeout_seconds: float
    """How long to wait for another rank before the run has failed."""
    report: Callable[[object], None]
    """Send anything picklable to the launcher while the task runs."""
    gpus: int = 1
    """Devices that this one process drives."""


def join(
    placement: Placement,
    device: torch.device,
    host: int,
    report: Callable[[object], None],
    crew: Crew,
) -> Worker:
    """Join the others of the crew; who and where they are is in torchrun's environment variables."""
    backend = "nccl" if device.type == "cuda" and placement.device_kind == "cuda" else "gloo"
    store, rank, world = next(rendezvous("env://", timeout=timedelta(seconds=_JOIN_SECONDS)))
    own = PrefixStore(crew.name, store)
    own.set(f"here/{rank}", "")
    report(WAITS_FOR_OTHERS)
    own.wait([f"here/{other}" for other in range(world)])
    dist.init_process_group(
        backend,
        store=PrefixStore("group", own),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=placement.timeout_seconds),
        device_id=device if backend == "nccl" else None,
    )
    let_senders_finish()
    everybody = placement.servers if crew.role == "server" else placement.devices
    return Worker(
        crew.first + rank,
        everybody,
        device,
        backend,
        host,
        PrefixStore("tasks", own),
        PrefixStore(SHARED, _bottom(store)),
        placement.devices,
        placement.timeout_seconds,
        report,
    )


def take_device(placement: Placement, local_rank: int, local_world: int) -> torch.device:
    """This process's own, of those of its machine."""
    if placement.device_kind == "cpu":
        keep_freed_memory()
        pin(cores_of(local_rank, placement.cores_per_device, core_order(allowed_cores())))
        torch.set_num_threads(placement.cores_per_device)
        return torch.device("cpu")
    # Every slice is the whole of the GPU that its MPS daemon shows.
    device = torch.device("cuda", 0 if placement.device_kind == "slice" else local_rank)
    torch.cuda.set_device(device)
    limit_memory(device)
    # Autograd's own thread finds this out and mends it by itself.
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA context")
    torch.set_num_threads(max(1, len(allowed_cores()) // local_world))
    return device


def serve_from_host() -> torch.device:
    """A server has host memory and whatever core is free."""
    keep_freed_memory()
    torch.set_num_threads(1)
    return torch.device("cpu")


def _bottom(store: Store) -> Store:
    """The store itself, without the prefixes that torch puts on the keys of each start."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
