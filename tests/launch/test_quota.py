"""Tests of CPU quotas for slow ranks and the removal of their cgroups."""

from __future__ import annotations

import os
import sys

import pytest

from scalewise.core.errors import UserError
from scalewise.launch.cpu_cores import cpu_quotas
from scalewise.launch.placement import Placement
from scalewise.launch.session import Session
from tests.launch import tasks

is_root = sys.platform == "linux" and os.geteuid() == 0


@pytest.mark.skipif(not is_root, reason="needs root on Linux")
def test_a_slow_rank_uses_only_its_share_of_a_core() -> None:
    with Session(Placement(2, "cpu", slow={1: 0.25})) as session:
        groups = session.run(tasks.quota)
        seconds = session.run(tasks.spin, 0.1)
    assert groups[0] is None
    assert groups[1] == (2500, 10_000)
    assert seconds[1] >= 0.3  # guaranteed by the kernel: 0.1 s of work takes 0.4 s at a quarter of a core


@pytest.mark.skipif(not is_root, reason="needs root on Linux")
def test_the_cgroups_are_removed_after_the_block() -> None:
    with cpu_quotas({0: 0.5, 3: 0.1}, cores_per_device=2) as groups:
        assert sorted(groups) == [0, 3]
        assert all(group.is_dir() for group in groups.values())
    assert not any(group.exists() for group in groups.values())


@pytest.mark.skipif(is_root, reason="root may write cgroups")
def test_without_permission_for_cgroups_slow_ranks_are_refused() -> None:
    with pytest.raises(UserError, match="slow ranks need"), cpu_quotas({0: 0.5}, cores_per_device=1):
        pass
