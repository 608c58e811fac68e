"""Worker: the rank, device and process group of a task."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from scalewise.launch.cpu_cores import allowed_cores, core_order, cores_for_rank, pin
from scalewise.launch.devices import limit_memory
from scalewise.launch.placement import Placement, RankGroup
from scalewise.launch.store import SocketStore
from scalewise.runtime.graceful_stop import GracefulStop, RankStop, stop_store
from scalewise.runtime.process_settings import keep_freed_memory, let_senders_finish

# On a busy machine ranks may start far apart; the placement's timeout applies after all have joined.
_JOIN_SECONDS = 120.0
WAITS_FOR_OTHERS = "waits for others"
"""Report of a rank that waits for the others to join."""
SHARED_PREFIX = "shared"
"""Prefix of the keys that all rank groups share."""


@dataclass(frozen=True)
class Worker:
    """Rank, device and stores of a task; the default process group is initialised."""

    rank: int
    world: int
    device: torch.device
    backend: str
    """Backend of the process group: 'nccl' between GPUs, otherwise 'gloo'."""
    host: int
    """Number of the rank's host."""
    store: Store
    """Store of this rank group, for tasks that need more than collectives; separate from the keys of torch."""
    shared: Store
    """Store of all rank groups of a session, through which workers and servers find each other."""
    workers: int
    """Number of devices that train, over all rank groups."""
    timeout_seconds: float
    """Seconds to wait for another rank before the run fails."""
    report: Callable[[object], None]
    """Send a picklable object to the launcher while the task runs."""
    gpus: int = 1
    """Number of devices that this process drives."""
    stop: GracefulStop = field(default_factory=GracefulStop)
    """Request to end the task after the current step."""


def join_process_group(
    placement: Placement,
    device: torch.device,
    host: int,
    report: Callable[[object], None],
    group: RankGroup,
    store_path: str | None = None,
) -> Worker:
    """Join the process group of this rank group, which is described by torchrun's environment variables.

    Without the path of a session's store the variables also describe the store.
    """
    backend = "nccl" if device.type == "cuda" and placement.device_kind == "cuda" else "gloo"
    store: Store
    if store_path is None:
        store, rank, world = next(rendezvous("env://", timeout=timedelta(seconds=_JOIN_SECONDS)))
    else:
        store = SocketStore(store_path, _JOIN_SECONDS)
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    group_store = PrefixStore(group.name, store)
    group_store.set(f"here/{rank}", "")
    report(WAITS_FOR_OTHERS)
    group_store.wait([f"here/{other}" for other in range(world)])
    dist.init_process_group(
        backend,
        store=PrefixStore("group", group_store),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=placement.timeout_seconds),
        device_id=device if backend == "nccl" else None,
    )
    let_senders_finish()
    role_size = placement.servers if group.role == "server" else placement.devices
    return Worker(
        group.first + rank,
        role_size,
        device,
        backend,
        host,
        PrefixStore("tasks", group_store),
        PrefixStore(SHARED_PREFIX, _without_prefixes(store)),
        placement.devices,
        placement.timeout_seconds,
        report,
        stop=RankStop(stop_store(_without_prefixes(store), group.name), rank, world, placement.timeout_seconds),
    )


def take_device(placement: Placement, local_rank: int, local_world: int) -> torch.device:
    """Select the device of this process among those of its machine, and configure torch for it."""
    if placement.device_kind == "cpu":
        keep_freed_memory()
        pin(cores_for_rank(local_rank, placement.cores_per_device, core_order(allowed_cores())))
        torch.set_num_threads(placement.cores_per_device)
        return torch.device("cpu")
    # To a slice, its share of the GPU is the whole device 0.
    device = torch.device("cuda", 0 if placement.device_kind == "slice" else local_rank)
    torch.cuda.set_device(device)
    limit_memory(device)
    # Harmless: the autograd thread creates the missing context itself.
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA context")
    torch.set_num_threads(max(1, len(allowed_cores()) // local_world))
    return device


def serve_from_host() -> torch.device:
    """Configure torch for a parameter server, which uses host memory and any free core."""
    keep_freed_memory()
    torch.set_num_threads(1)
    return torch.device("cpu")


def _without_prefixes(store: Store) -> Store:
    """Return the underlying store, without the key prefixes that torch adds at each start."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
