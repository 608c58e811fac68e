"""A cap on what a run may take of a CPU device."""

from __future__ import annotations

import resource

import pytest
import torch

from scalewise.step.room import DeviceFull, Room

CPU = torch.device("cpu")
MB = 1_000_000


@pytest.fixture(autouse=True)
def _capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEWISE_MEMORY_LIMIT_GB", "0.2")


def test_the_kernel_refuses_what_goes_beyond_the_limit_and_only_that() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with Room(CPU, "single") as room:
        with room.building():
            model = torch.zeros(100 * MB, dtype=torch.uint8)
        step = torch.zeros(60 * MB, dtype=torch.uint8)
        with pytest.raises(RuntimeError, match="DefaultCPUAllocator: can't allocate memory"):
            torch.zeros(80 * MB, dtype=torch.uint8)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert model.nbytes + step.nbytes == 160 * MB


def test_a_model_may_be_larger_while_it_is_made_if_only_a_part_stays() -> None:
    with Room(CPU, "pipeline") as room:
        with room.building():
            parts = [torch.zeros(100 * MB, dtype=torch.uint8) for _ in range(4)]
            del parts[1:]
        assert parts[0].nbytes == 100 * MB


def test_what_is_to_stay_and_does_not_fit_is_said() -> None:
    said = r"takes 0\.3\d* GB, and SCALEWISE_MEMORY_LIMIT_GB allows 0\.2"
    with pytest.raises(DeviceFull, match=said) as raised, Room(CPU, "single") as room, room.building():
        model = torch.zeros(300 * MB, dtype=torch.uint8)
    assert raised.value.strategy == "single"  # type: ignore[attr-defined]
    assert model.nbytes == 300 * MB


def test_without_a_limit_nothing_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCALEWISE_MEMORY_LIMIT_GB")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with Room(CPU, "single") as room, room.building():
        pass
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
