"""Slow ranks: a quota that holds while the session lasts, and no cgroup after it."""

from __future__ import annotations

import os
import sys

import pytest

from scalewise.errors import UserError
from scalewise.session.placement import Placement
from scalewise.session.quota import quotas
from scalewise.session.session import Session
from tests.session import tasks

is_root = sys.platform == "linux" and os.geteuid() == 0


@pytest.mark.skipif(not is_root, reason="needs root on Linux")
def test_a_slow_rank_may_use_its_share_of_a_core_only() -> None:
    with Session(Placement(2, "cpu", slow={1: 0.25})) as session:
        groups = session.run(tasks.quota)
        seconds = session.run(tasks.spin, 0.1)
    assert groups[0] is None
    assert groups[1] == (2500, 10_000)
    assert seconds[1] >= 0.3  # the kernel's promise, not a race: 0.1 s of work takes 0.4 s at a quarter


@pytest.mark.skipif(not is_root, reason="needs root on Linux")
def test_the_cgroups_go_with_the_block() -> None:
    with quotas({0: 0.5, 3: 0.1}, cores_per_device=2) as groups:
        assert sorted(groups) == [0, 3]
        assert all(group.is_dir() for group in groups.values())
    assert not any(group.exists() for group in groups.values())


@pytest.mark.skipif(is_root, reason="root may write cgroups")
def test_without_the_right_to_write_cgroups_the_answer_is_a_sentence() -> None:
    with pytest.raises(UserError, match="slow ranks need"), quotas({0: 0.5}, cores_per_device=1):
        pass
