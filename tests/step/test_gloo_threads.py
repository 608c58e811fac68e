"""Threads of gloo give way to the one that computes."""

from __future__ import annotations

import os
from pathlib import Path

import torch.distributed as dist

from scalewise.engines.groups import groups_of
from scalewise.session.worker import Worker
from scalewise.step.gloo_threads import WATCHER
from tests.conftest import SessionOf


def policies(worker: Worker) -> list[tuple[str, int]]:
    """Of every thread of a rank that is in two groups."""
    groups_of(worker.world, 2, worker.rank, 60.0)
    dist.barrier()
    tasks = Path("/proc/self/task")
    return [((task / "comm").read_text().strip(), os.sched_getscheduler(int(task.name))) for task in tasks.iterdir()]


def test_a_thread_that_watches_sockets_displaces_nobody(session_of: SessionOf) -> None:
    for threads in session_of(4).run(policies):
        watchers = [policy for name, policy in threads if name == WATCHER]
        assert len(watchers) >= 2
        assert set(watchers) == {os.SCHED_BATCH}
        assert {policy for name, policy in threads if name != WATCHER} == {os.SCHED_OTHER}
