"""Slices of one GPU, where there is one and MPS can start; else the refusal."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from scalewise.errors import UserError
from scalewise.session.failure import RankFailed
from scalewise.session.hardware import device_name
from scalewise.session.placement import Placement
from scalewise.session.session import Session
from scalewise.session.slices import SHARE, slices
from tests.session import tasks

HAS_MPS = shutil.which("nvidia-cuda-mps-control") is not None
needs_gpu = pytest.mark.skipif(not (HAS_MPS and torch.cuda.device_count()), reason="needs a GPU and CUDA MPS")


@pytest.mark.skipif(HAS_MPS, reason="has CUDA MPS")
def test_without_mps_the_answer_is_a_sentence() -> None:
    with (
        pytest.raises(UserError, match="slices need CUDA MPS, but the command 'nvidia-cuda-mps-control'"),
        slices(2, None),
    ):
        pass


@needs_gpu
def test_the_daemon_ends_with_the_block_and_leaves_nothing() -> None:
    with slices(4, None) as environment:
        pipes = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
        daemon = int((pipes / "nvidia-cuda-mps-control.pid").read_text())
        assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
        os.kill(daemon, 0)
    assert not pipes.parent.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(daemon, 0)


@needs_gpu
def test_every_slice_has_the_same_share_of_the_multiprocessors() -> None:
    whole = torch.cuda.get_device_properties(0).multi_processor_count
    with Session(Placement(2, "slice", slice_percent=25)) as session:
        assert session.run(tasks.total, 1.0) == [3.0, 3.0]
        seen = session.run(tasks.where)
        counts = session.run(tasks.multiprocessors)
    assert {(there["device"], there["backend"]) for there in seen} == {("cuda:0", "gloo")}
    assert counts[0] == counts[1]
    assert 0.15 * whole <= counts[0] <= 0.3 * whole


@needs_gpu
def test_a_slice_that_is_killed_is_named() -> None:
    with (
        Session(Placement(2, "slice")) as session,
        pytest.raises(RankFailed, match=r"^rank 1 was killed \(signal 9\)$"),
    ):
        session.run(tasks.fail_on, 1, "kill")


def test_a_slice_is_called_by_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    names = []
    for share in ("25", "100", None):
        monkeypatch.delenv(SHARE, raising=False) if share is None else monkeypatch.setenv(SHARE, share)
        names.append(device_name(torch.device("cuda:0")))
    assert names == ["25 % of NVIDIA H200", "NVIDIA H200", "NVIDIA H200"]
