"""Tests of device selection and memory limits."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from scalewise.core.errors import RankFailed, UserError
from scalewise.launch.devices import SHARE_VARIABLE, device_name, limit_memory, settle, slices
from scalewise.launch.placement import Placement
from scalewise.launch.session import Session
from tests.launch import tasks

GPUS = torch.cuda.device_count()


def test_auto_selects_cuda_if_there_are_enough_gpus() -> None:
    assert settle(Placement(GPUS + 1)).device_kind == "cpu"
    assert settle(Placement(max(GPUS, 1))).device_kind == ("cuda" if GPUS else "cpu")
    assert settle(Placement(1, slow={0: 0.5})).device_kind == "cpu"


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (Placement(GPUS + 2, "cuda"), f"{GPUS + 2} CUDA devices requested, but this machine has {GPUS}"),
        (Placement(65, "cpu"), "65 devices are too many for one machine; valid: 1 to 64, or use torchrun"),
        (Placement(2, "cpu", hosts=2), "2 emulated hosts need a link speed; add for example --link 1gbit"),
    ],
)
def test_devices_that_the_machine_lacks_are_refused(placement: Placement, message: str) -> None:
    with pytest.raises(UserError) as refused:
        settle(placement)
    assert message in str(refused.value)


@pytest.mark.skipif(GPUS > 0, reason="has a GPU")
def test_slices_without_a_gpu_are_refused() -> None:
    with pytest.raises(UserError, match="slices need a CUDA device and this machine has none"):
        settle(Placement(2, "slice"))


@pytest.mark.parametrize("text", ["much", "0", "-1", "nan", "inf", ""])
def test_an_invalid_memory_limit_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEWISE_MEMORY_LIMIT_GB", text)
    with pytest.raises(UserError, match=f"SCALEWISE_MEMORY_LIMIT_GB is '{text}'; it must be a number of GB above 0"):
        limit_memory(torch.device("cuda"))


@pytest.mark.skipif(GPUS == 0, reason="needs a GPU")
def test_the_memory_limit_is_enforced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEWISE_MEMORY_LIMIT_GB", "0.25")
    device = torch.device("cuda", 0)
    limit_memory(device)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(300_000_000, dtype=torch.uint8, device=device)
        torch.empty(100_000_000, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


HAS_MPS = shutil.which("nvidia-cuda-mps-control") is not None
needs_gpu = pytest.mark.skipif(not (HAS_MPS and torch.cuda.device_count()), reason="needs a GPU and CUDA MPS")


@pytest.mark.skipif(HAS_MPS, reason="has CUDA MPS")
def test_without_mps_slices_are_refused() -> None:
    with (
        pytest.raises(UserError, match="slices need CUDA MPS, but the command 'nvidia-cuda-mps-control'"),
        slices(2, None),
    ):
        pass


@needs_gpu
def test_the_daemon_and_its_files_are_removed_after_the_block() -> None:
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
        ranks = session.run(tasks.where)
        counts = session.run(tasks.multiprocessors)
    assert {(rank["device"], rank["backend"]) for rank in ranks} == {("cuda:0", "gloo")}
    assert counts[0] == counts[1]
    assert 0.15 * whole <= counts[0] <= 0.3 * whole


@needs_gpu
def test_a_killed_slice_is_named() -> None:
    with (
        Session(Placement(2, "slice")) as session,
        pytest.raises(RankFailed, match=r"^rank 1 was killed \(signal 9\)$"),
    ):
        session.run(tasks.fail_on, 1, "kill")


def test_the_name_of_a_slice_contains_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    names = []
    for share in ("25", "100", None):
        monkeypatch.delenv(SHARE_VARIABLE, raising=False)
        if share is not None:
            monkeypatch.setenv(SHARE_VARIABLE, share)
        names.append(device_name(torch.device("cuda:0")))
    assert names == ["25 % of NVIDIA H200", "NVIDIA H200", "NVIDIA H200"]
