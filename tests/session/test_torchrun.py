"""The same tasks under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalewise.errors import UserError
from scalewise.session.placement import Placement
from scalewise.session.torchrun import TorchrunSession, under_torchrun

RANK_1_OF_4 = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


@pytest.fixture
def rank_1_of_4(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in RANK_1_OF_4.items():
        monkeypatch.setenv(name, value)


def test_a_plain_process_is_not_under_torchrun() -> None:
    assert not under_torchrun()


@pytest.mark.usefixtures("rank_1_of_4")
def test_devices_and_hosts_are_torchruns() -> None:
    assert under_torchrun()
    session = TorchrunSession(Placement(device_kind="cpu"))
    assert (session.placement.devices, session.placement.hosts, session.is_main) == (4, 2, False)


@pytest.mark.usefixtures("rank_1_of_4")
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"devices": 2}, "torchrun started 4 ranks, not 2; leave --devices out or say 4"),
        ({"devices": 4, "hosts": 2, "link": "1gbit"}, "under torchrun hosts are real, 2 cannot be rehearsed"),
        ({"slow": {0: 0.5}}, "slow ranks and slices exist on one machine only"),
        ({"device_kind": "slice"}, "slow ranks and slices exist on one machine only"),
    ],
)
def test_what_makes_no_sense_under_torchrun_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        TorchrunSession(Placement(**given))
    assert sentence in str(refused.value)


def test_every_rank_runs_the_task_and_one_prints_until_one_raises(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "-m", "tests.session.torchrun_script"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path)},  # torchrun leaves its logs behind
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "error rank 1 failed at" in done.stderr
    assert "ValueError: learning rate is not a number" in done.stderr
    assert json.loads(done.stdout) == [True, 2, [3.0, 3.0], [[0, {"step": 0}], [0, {"step": 1}]]]
