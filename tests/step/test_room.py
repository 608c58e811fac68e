"""A cap on what a run may take of a CPU device."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
import torch

from scalewise.step.room import DeviceFull, Room

CPU = torch.device("cpu")
MB = 1_000_000
IN_A_FRESH_PROCESS = """
import resource, torch
from scalewise.step.room import Room

def zeros(megabytes):
    return torch.zeros(megabytes * 1_000_000, dtype=torch.uint8)

def attempt(megabytes):
    try:
        return zeros(megabytes).nbytes // 1_000_000
    except RuntimeError as error:
        return str(error).split(": ")[1]

before = resource.getrlimit(resource.RLIMIT_DATA)
with Room(torch.device("cpu"), "pipeline") as room:
    with room.building(lambda: 100_000_000):
        parts = [zeros(100) for _ in range(4)]
        del parts[1:]
    print(attempt(80), attempt(130))
    step = zeros(60)
    print(attempt(80), attempt(30))
    del step
    print(attempt(80))
print(attempt(300), resource.getrlimit(resource.RLIMIT_DATA) == before)
"""
FULL = "can't allocate memory"


@pytest.fixture(autouse=True)
def _capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEWISE_MEMORY_LIMIT_GB", "0.2")


def test_the_kernel_refuses_what_goes_beyond_the_limit_and_only_that() -> None:
    """The model is four times as large while it is made; 100 of the 200 MB are left when one part of it stays."""
    said = subprocess.run([sys.executable, "-c", IN_A_FRESH_PROCESS], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [f"80 {FULL}", f"{FULL} 30", "80", "300 True"]


def test_what_is_to_stay_and_does_not_fit_is_said() -> None:
    said = r"takes 0\.3 GB, and SCALEWISE_MEMORY_LIMIT_GB allows 0\.2"
    with pytest.raises(DeviceFull, match=said) as raised, Room(CPU, "single") as room, room.building(lambda: 300 * MB):
        pass
    assert raised.value.strategy == "single"  # type: ignore[attr-defined]


def test_without_a_limit_nothing_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCALEWISE_MEMORY_LIMIT_GB")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with Room(CPU, "single") as room, room.building(lambda: 10**12):
        pass
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
