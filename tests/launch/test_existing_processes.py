"""Tests of a session in the calling process."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from scalewise.core.errors import RankFailed, UserError
from scalewise.launch.existing_processes import InProcess, TorchrunSession
from scalewise.launch.placement import Placement, under_torchrun


def test_an_error_keeps_no_tensors_of_the_run_alive() -> None:
    references: list[weakref.ref[torch.Tensor]] = []

    def fails(_: Any) -> None:
        activations = torch.ones(1000, requires_grad=True).exp()
        references.append(weakref.ref(activations))
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        except torch.OutOfMemoryError as error:
            raise RuntimeError("in backward") from error

    with InProcess(Placement(1, "cpu")) as session, pytest.raises(RankFailed) as raised:
        session.run(fails)
    assert raised.value.kind == "oom"
    assert [reference() for reference in references] == [None]


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
def test_torchrun_sets_devices_and_hosts() -> None:
    assert under_torchrun()
    session = TorchrunSession(Placement(device_kind="cpu"))
    assert (session.placement.devices, session.placement.hosts, session.is_main) == (4, 2, False)


@pytest.mark.usefixtures("rank_1_of_4")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 2}, "torchrun started 4 ranks, not 2; leave --devices out or set it to 4"),
        ({"devices": 4, "hosts": 2, "link": "1gbit"}, "2 hosts cannot be emulated under torchrun"),
        ({"slow": {0: 0.5}}, "slow ranks and slices are not available under torchrun"),
        ({"device_kind": "slice"}, "slow ranks and slices are not available under torchrun"),
    ],
)
def test_options_without_meaning_under_torchrun_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        TorchrunSession(Placement(**options))
    assert message in str(refused.value)


def torchrun(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*line, "-m", "tests.launch.torchrun_script", *arguments],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path)},  # torchrun leaves its logs behind
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.slow
def test_every_rank_runs_the_task_and_only_the_main_rank_prints(tmp_path: Path) -> None:
    result = torchrun(tmp_path, "raise")
    assert result.returncode == 1
    lines = [line for line in result.stderr.splitlines() if line.startswith("error rank")]
    assert len(lines) == 2, result.stderr  # both ranks name the first cause
    for line in lines:
        assert line.startswith(f"error rank 1 on {platform.node()} failed at")
        assert "ValueError: learning rate is not a number" in line
    assert json.loads(result.stdout) == [True, 2, [3.0, 3.0], [[0, {"step": 0}], [0, {"step": 1}]]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ("one host", f"died rank 1 on {platform.node()} was killed (signal 9)"),
        ("separate hosts", "died rank 1 on node1 was lost: it does not answer"),
    ],
)
def test_the_other_ranks_name_a_killed_one(hosts: str, message: str, tmp_path: Path) -> None:
    result = torchrun(tmp_path, "kill", hosts)
    assert result.returncode == 1
    # The signal is known once torchrun has collected the process; on a busy machine the others may end before that.
    known_later = message.replace("was killed (signal 9)", "ended without a result")
    assert {message, known_later} & set(result.stderr.splitlines()), result.stderr
