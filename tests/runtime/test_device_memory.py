"""Peak memory of a run on the CPU, as malloc and the kernel count it."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
from collections.abc import Callable
from threading import Thread

import pytest
import torch

from scalewise.runtime import device_memory
from scalewise.runtime.device_memory import DeviceFull, MemoryLimit, PeakMemory

MB = 1_000_000
CPU = torch.device("cpu")
SLACK = 1 * MB
"""Python's own objects, and malloc's rounding to pages."""


@pytest.fixture(autouse=True)
def _libraries() -> None:
    """Load what a first use would load, so that tests see the tensors alone."""
    device_memory._load_libraries()


def tensor(megabytes: int) -> torch.Tensor:
    return torch.ones(megabytes * MB, dtype=torch.uint8)


def in_another_thread(work: Callable[[], object]) -> None:
    thread = Thread(target=work)
    thread.start()
    thread.join()


def test_the_peak_of_the_second_step_is_measured() -> None:
    with PeakMemory(CPU) as peak:
        peak.watch(steps=8, limited=False)
        kept = tensor(30)
        peak.look()
        tensor(60)
        peak.after_step(1)
        tensor(20)
        tensor(10)
        peak.after_step(2)
        tensor(90)
        assert peak.read() == pytest.approx(50 * MB, abs=SLACK)
    assert kept.nbytes == 30 * MB


def test_what_building_leaves_counts_and_what_it_took_does_not() -> None:
    with PeakMemory(CPU) as peak:
        peak.watch(steps=1, limited=True)
        kept = tensor(30)
        tensor(90)
        assert peak.look() == pytest.approx(30 * MB, abs=SLACK)
        tensor(20)
        del kept
        assert peak.look() == pytest.approx(0, abs=SLACK)
        tensor(10)
        assert peak.read() == pytest.approx(10 * MB, abs=SLACK)


def test_memory_that_an_earlier_run_left_behind_does_not_count() -> None:
    left: dict[str, object] = {"weights": tensor(50)}
    left["itself"] = left
    gc.disable()
    try:
        del left
        with PeakMemory(CPU) as peak:
            peak.watch(steps=8, limited=False)
            kept = tensor(30)
            gc.collect()
            assert peak.look() == pytest.approx(kept.nbytes, abs=SLACK)
    finally:
        gc.enable()


def test_memory_that_another_thread_frees_is_seen_to_go() -> None:
    with PeakMemory(CPU) as peak:
        peak.watch(steps=8, limited=False)
        peak.look()
        peak.after_step(1)
        for _ in range(3):
            given = [tensor(20)]
            in_another_thread(given.clear)
        peak.after_step(2)
        assert peak.read() == pytest.approx(20 * MB, abs=SLACK)


def test_a_run_whose_first_steps_are_timed_is_not_measured() -> None:
    with PeakMemory(CPU) as peak:
        peak.watch(steps=7, limited=False)
        peak.after_step(2)
        assert peak.read() is None


def test_memory_that_is_not_written_to_counts() -> None:
    """DDP allocates new buckets in the second step, and writes to them only when gradients are ready."""
    with PeakMemory(CPU) as peak:
        peak.watch(steps=8, limited=False)
        peak.look()
        peak.after_step(1)
        buckets = torch.empty(30 * MB, dtype=torch.uint8)
        tensor(20)
        peak.after_step(2)
        assert peak.read() == pytest.approx(50 * MB, abs=SLACK)
    assert buckets.nbytes == 30 * MB


def test_memory_that_another_thread_allocates_counts() -> None:
    with PeakMemory(CPU) as peak:
        peak.watch(steps=8, limited=False)
        in_another_thread(lambda: None)
        peak.look()
        kept: list[torch.Tensor] = []
        in_another_thread(lambda: kept.append(tensor(20)))
        assert peak.host is not None
        assert peak.host.in_use() == pytest.approx(20 * MB, abs=SLACK)


def test_an_earlier_peak_of_the_process_does_not_count() -> None:
    tensor(200)
    with PeakMemory(CPU) as peak:
        peak.watch(steps=8, limited=False)
        tensor(300)
        peak.look()
        tensor(20)
        peak.after_step(2)
        assert peak.read() == pytest.approx(20 * MB, abs=SLACK)


def test_a_system_without_these_statistics_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "_bytes_below_peak", lambda: None)
    with PeakMemory(CPU) as peak:
        peak.watch(steps=8, limited=False)
        assert (peak.look(), peak.read()) == (0, None)


PEAK_WITH_THREADS = """
import threading, torch
from scalewise.runtime.device_memory import PeakMemory

with PeakMemory(torch.device("cpu")) as peak:
    peak.watch(steps=8, limited=False)
    peak.look()
    peak.after_step(1)
    both_allocated = threading.Barrier(2)
    threads = [threading.Thread(target=lambda: (bytearray(10_000), both_allocated.wait())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    peak.after_step(2)
    print(peak.read())
"""


@pytest.mark.slow
def test_threads_that_allocate_at_the_same_time_add_only_what_they_allocate() -> None:
    """In a new process, in which glibc reserves 64 MB of addresses for each such thread."""
    output = subprocess.run([sys.executable, "-c", PEAK_WITH_THREADS], capture_output=True, text=True, check=True)
    assert int(output.stdout) < 1 * MB


FAULTS_OF_LATER_STEPS = """
import resource, torch
from scalewise.runtime.device_memory import PeakMemory
from scalewise.runtime.process_settings import keep_freed_memory

def tensor():
    torch.ones(80_000_000, dtype=torch.uint8)

def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

keep_freed_memory()
for _ in range(2):
    with PeakMemory(torch.device("cpu")) as peak:
        peak.watch(steps=8, limited=False)
        peak.look()
        for step in (1, 2):
            tensor()
            peak.after_step(step)
        before = page_faults()
        tensor()
        print(page_faults() - before)
"""


@pytest.mark.slow
def test_steps_after_the_measured_ones_find_their_memory_in_place() -> None:
    """In the first and in the second run of a new process, whose memory no other test has fragmented."""
    output = subprocess.run([sys.executable, "-c", FAULTS_OF_LATER_STEPS], capture_output=True, text=True, check=True)
    first, second = map(int, output.stdout.split())
    assert first < 100  # 80 MB are 20,000 pages
    assert second < 100


SCRIPT = """
import resource, torch
from scalewise.runtime.device_memory import MemoryLimit

def zeros(megabytes):
    return torch.zeros(megabytes * 1_000_000, dtype=torch.uint8)

def attempt(megabytes):
    try:
        return zeros(megabytes).nbytes // 1_000_000
    except RuntimeError as error:
        return str(error).split(": ")[1]

before = resource.getrlimit(resource.RLIMIT_DATA)
with MemoryLimit(torch.device("cpu")) as limit:
    with limit.building(lambda: 100_000_000):
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


@pytest.mark.slow
def test_the_kernel_refuses_only_memory_beyond_the_limit() -> None:
    """400 MB are allocated while the engine is built and 100 MB are kept, so that 100 of 200 MB are left."""
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == [f"80 {FULL}", f"{FULL} 30", "80", "300 True"]


def test_kept_tensors_beyond_the_limit_are_refused() -> None:
    message = r"take 0\.3 GB, but SCALEWISE_MEMORY_LIMIT_GB allows 0\.2 GB"
    with pytest.raises(DeviceFull, match=message), MemoryLimit(CPU) as limit, limit.building(lambda: 300 * MB):
        pass


def test_without_a_limit_no_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCALEWISE_MEMORY_LIMIT_GB")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with MemoryLimit(CPU) as limit, limit.building(lambda: 10**12):
        pass
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
