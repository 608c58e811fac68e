"""Choose and pin the CPU cores of ranks, and limit slow ranks with cgroups."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from scalewise.core.errors import UserError
from scalewise.launch.forkserver import run_afterwards

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def cores_for_rank(rank: int, cores_per_device: int, order: Sequence[int]) -> list[int]:
    """Assign cores to a rank in turn, starting again from the first core when all are taken."""
    first = rank * cores_per_device
    return sorted({order[(first + i) % len(order)] for i in range(cores_per_device)})


def core_order(allowed: Iterable[int]) -> list[int]:
    """List the allowed cores with one hardware thread of every physical core first.

    Two hardware threads of one physical core are slower than two cores.
    """
    return order_cores({core: _siblings(core) for core in allowed})


def order_cores(siblings: dict[int, str]) -> list[int]:
    """Order cores by hardware thread: {0: '0,2', 1: '1,3', 2: '0,2', 3: '1,3'} -> [0, 1, 2, 3].

    `siblings` maps each core to a text that identifies its physical core.
    """
    thread_counts: dict[str, int] = {}
    numbered_cores: list[tuple[int, int]] = []
    for core in sorted(siblings):
        thread = thread_counts.get(siblings[core], 0)
        thread_counts[siblings[core]] = thread + 1
        numbered_cores.append((thread, core))
    return [core for _, core in sorted(numbered_cores)]


def pin(cores: Sequence[int]) -> None:
    """Pin the calling thread, and threads it starts later, to the cores (on Linux; no effect elsewhere)."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def allowed_cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _siblings(core: int) -> str:
    try:
        return Path(_SIBLINGS.format(core)).read_text().strip()
    except OSError:
        return str(core)


# Shorter than a training step. With the kernel's default of 100 ms a slow rank would run at full speed, then freeze.
_PERIOD_US = 10_000


@contextmanager
def cpu_quotas(slow: Mapping[int, float], cores_per_device: int) -> Iterator[dict[int, Path]]:
    """Create a cgroup with a CPU quota for each slow rank; remove it when the block ends or this process dies."""
    if not slow:
        yield {}
        return
    groups = {rank: _cpu_hierarchy() / f"scalewise-{os.getpid()}-rank{rank}" for rank in slow}
    with run_afterwards("; ".join(_remove(group) for group in groups.values())):
        for rank, group in groups.items():
            _limit(group, round(slow[rank] * cores_per_device * _PERIOD_US))
        yield groups


def join_cgroup(group: Path) -> None:
    """Move the calling process with all its threads into the cgroup."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _limit(group: Path, quota_us: int) -> None:
    try:
        group.mkdir()
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (group.parent / "cgroup.subtree_control").write_text("+cpu")
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
    except OSError as error:
        raise UserError(
            f"slow ranks need a cgroup, but none can be created in {group.parent} ({error.strerror}); run as root"
        ) from None


def _cpu_hierarchy() -> Path:
    """Find the mount point of the cpu controller, version 1 first: a machine with both versions has it in version 1."""
    mounts = [line.split() for line in _read("/proc/mounts").splitlines()]
    for _, folder, kind, options, *_ in mounts:
        if kind == "cgroup" and "cpu" in options.split(","):
            return Path(folder)
    for _, folder, kind, *_ in mounts:
        if kind == "cgroup2" and "cpu" in _read(f"{folder}/cgroup.controllers").split():
            return Path(folder)
    raise UserError("slow ranks need Linux cgroups with the cpu controller, which this machine does not have")


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _remove(group: Path) -> str:
    """Shell command that removes a cgroup; retries for a minute, until its last process has ended."""
    path = shlex.quote(str(group))
    return f"for i in $(seq 600); do [ -d {path} ] || break; rmdir {path} 2>/dev/null && break; sleep 0.1; done"
