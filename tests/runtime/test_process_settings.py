"""Test of the scheduling policy of gloo's threads."""

from __future__ import annotations

import os
from pathlib import Path

import torch.distributed as dist

from scalewise.engines.communication import groups_of
from scalewise.launch.worker import Worker
from scalewise.runtime.process_settings import GLOO_THREAD
from tests.conftest import SessionOf


def policies(worker: Worker) -> list[tuple[str, int]]:
    """Return name and scheduling policy of every thread of a rank in two process groups."""
    groups_of(worker.world, 2, worker.rank, 60.0)
    dist.barrier()
    tasks = Path("/proc/self/task")
    return [((task / "comm").read_text().strip(), os.sched_getscheduler(int(task.name))) for task in tasks.iterdir()]


def test_gloo_threads_have_batch_policy(session_of: SessionOf) -> None:
    for threads in session_of(4).run(policies):
        policies_of_gloo = [policy for name, policy in threads if name == GLOO_THREAD]
        assert len(policies_of_gloo) >= 2
        assert set(policies_of_gloo) == {os.SCHED_BATCH}
        assert {policy for name, policy in threads if name != GLOO_THREAD} == {os.SCHED_OTHER}
