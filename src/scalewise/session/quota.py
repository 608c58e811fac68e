"""Less than a whole core for a slow rank: a cgroup with a processor quota, version 1 or 2, gone afterwards."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from scalewise.errors import UserError
from scalewise.session.janitor import afterwards

# Short against a training step: within the kernel's usual 100 ms a slow rank would run at full speed, then freeze.
_PERIOD_US = 10_000


@contextmanager
def quotas(slow: Mapping[int, float], cores_per_device: int) -> Iterator[dict[int, Path]]:
    """A cgroup for each slow rank, for the rank to join; removed when the block ends or this process dies."""
    if not slow:
        yield {}
        return
    groups = {rank: _cpu_hierarchy() / f"scalewise-{os.getpid()}-rank{rank}" for rank in slow}
    with afterwards("; ".join(_remove(group) for group in groups.values())):
        for rank, group in groups.items():
            _limit(group, round(slow[rank] * cores_per_device * _PERIOD_US))
        yield groups


def join(group: Path) -> None:
    """Move the calling process, with all its threads, under the quota."""
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
            f"slow ranks need a cgroup of their own, but {group.parent} refuses ({error.strerror}); run as root"
        ) from None


def _cpu_hierarchy() -> Path:
    """Where the cpu controller is mounted, version 1 before 2 because a machine with both keeps it in 1."""
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
    """A cgroup cannot go before its last process has: try for five seconds."""
    path = shlex.quote(str(group))
    return f"for i in $(seq 50); do [ -d {path} ] || break; rmdir {path} 2>/dev/null && break; sleep 0.1; done"
