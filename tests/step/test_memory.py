"""Peak memory of a run on the CPU, as torch's allocator sees it."""

from __future__ import annotations

import gc
from threading import Thread

import pytest
import torch

from scalewise.step.clock import HostClock, Times
from scalewise.step.memory import PeakMemory

MB = 1_000_000
NEXT_TO_NOTHING = 4096
"""What the rest of the process may give back meanwhile: the C library tells of all it has."""


def test_the_peak_of_the_first_two_steps_is_seen() -> None:
    with PeakMemory(torch.device("cpu")) as peak:
        peak.watch(HostClock(Times()), steps=8)
        kept = torch.zeros(3 * MB, dtype=torch.uint8)
        torch.zeros(2 * MB, dtype=torch.uint8)
        torch.zeros(1 * MB, dtype=torch.uint8)
        peak.after_step(1)
        assert peak.read() is None
        peak.after_step(2)
        torch.zeros(50 * MB, dtype=torch.uint8)
    assert peak.read() == pytest.approx(5 * MB, abs=NEXT_TO_NOTHING)
    assert kept.nbytes == 3 * MB


def test_what_building_leaves_is_part_of_the_peak_and_what_it_took_is_not() -> None:
    with PeakMemory(torch.device("cpu")) as peak:
        peak.watch(HostClock(Times()), steps=1, anyway=True)
        kept = torch.zeros(3 * MB, dtype=torch.uint8)
        torch.zeros(50 * MB, dtype=torch.uint8)
        assert peak.look() == pytest.approx(3 * MB, abs=NEXT_TO_NOTHING)
        torch.zeros(2 * MB, dtype=torch.uint8)
        del kept
        assert peak.look() == pytest.approx(0, abs=NEXT_TO_NOTHING)
        torch.zeros(1 * MB, dtype=torch.uint8)
    assert peak.read() == pytest.approx(1 * MB, abs=NEXT_TO_NOTHING)


def test_what_an_earlier_run_left_behind_is_not_missed_when_it_goes() -> None:
    left: dict[str, object] = {"weights": torch.zeros(5 * MB, dtype=torch.uint8)}
    left["itself"] = left
    gc.disable()
    try:
        del left
        with PeakMemory(torch.device("cpu")) as peak:
            peak.watch(HostClock(Times()), steps=8)
            kept = torch.zeros(3 * MB, dtype=torch.uint8)
            gc.collect()  # as engines do that cut an exported model
            assert peak.look() == pytest.approx(kept.nbytes, abs=NEXT_TO_NOTHING)
    finally:
        gc.enable()


def test_a_run_whose_first_steps_are_timed_is_not_watched() -> None:
    with PeakMemory(torch.device("cpu")) as peak:
        peak.watch(HostClock(Times()), steps=7)
        assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
        peak.after_step(2)
    assert peak.read() is None


def test_whoever_profiles_already_is_left_alone() -> None:
    with torch.autograd.profiler.profile(), PeakMemory(torch.device("cpu")) as peak:
        peak.watch(HostClock(Times()), steps=8)
        assert not peak.watching


def test_a_run_that_fails_leaves_no_profiler_behind() -> None:
    with PeakMemory(torch.device("cpu")) as peak:
        peak.watch(HostClock(Times()), steps=8)
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]


def test_after_every_phase_what_a_thread_gave_back_is_gone() -> None:
    clock = HostClock(Times())
    with PeakMemory(torch.device("cpu")) as peak:
        peak.watch(clock, steps=8)
        for _ in range(3):
            given = [torch.zeros(20 * MB, dtype=torch.uint8)]
            thread = Thread(target=given.clear)
            thread.start()
            thread.join()
            clock.lap("reduce")
        peak.after_step(2)
        assert clock.after_lap is None
    assert peak.read() == pytest.approx(20 * MB, rel=0.05)
