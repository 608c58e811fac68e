"""What a machine can do of what a placement asks."""

from __future__ import annotations

import pytest
import torch

from scalewise.errors import UserError
from scalewise.session.devices import limit_memory, settle
from scalewise.session.placement import Placement

GPUS = torch.cuda.device_count()


def test_auto_takes_gpus_if_there_are_enough() -> None:
    assert settle(Placement(GPUS + 1)).device_kind == "cpu"
    assert settle(Placement(max(GPUS, 1))).device_kind == ("cuda" if GPUS else "cpu")
    assert settle(Placement(1, slow={0: 0.5})).device_kind == "cpu"


@pytest.mark.parametrize(
    ("placement", "sentence"),
    [
        (Placement(GPUS + 2, "cuda"), f"{GPUS + 2} CUDA devices were asked for and this machine has {GPUS}"),
        (Placement(65, "cpu"), "65 devices are too many for one machine; valid: 1 to 64, or use torchrun"),
        (Placement(2, "cpu", hosts=2), "2 rehearsed hosts need the speed of their links; add for example --link 1gbit"),
    ],
)
def test_what_cannot_be_had_is_refused(placement: Placement, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        settle(placement)
    assert sentence in str(refused.value)


@pytest.mark.skipif(GPUS > 0, reason="has a GPU")
def test_slices_without_a_gpu_are_refused() -> None:
    with pytest.raises(UserError, match="slices need a CUDA device and this machine has none"):
        settle(Placement(2, "slice"))


@pytest.mark.parametrize("text", ["much", "0", "-1", "nan", "inf", ""])
def test_a_memory_limit_that_cannot_be_read_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEWISE_MEMORY_LIMIT_GB", text)
    with pytest.raises(UserError, match=f"SCALEWISE_MEMORY_LIMIT_GB is '{text}'; it must be a number of GB above 0"):
        limit_memory(torch.device("cuda"))


@pytest.mark.skipif(GPUS == 0, reason="needs a GPU")
def test_a_memory_limit_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEWISE_MEMORY_LIMIT_GB", "0.25")
    device = torch.device("cuda", 0)
    limit_memory(device)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(300_000_000, dtype=torch.uint8, device=device)
        torch.empty(100_000_000, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
