"""A device's peak memory, of one run alone: what torch's allocator had given out at most."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy, _profiler_enabled
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

WATCHED_STEPS = 2
"""The first makes the optimizer's state; from the second on all are alike."""
FEWEST_STEPS = 8
"""Of a run whose first two are warm-up."""


def forget_peak_memory(device: torch.device) -> None:
    """This process may have trained before; where CUDA has not started there is nothing to forget."""
    if device.type == "cuda" and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


class _HeapInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def _heap_bytes() -> int | None:
    """In use; None without glibc 2.33 or later."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return None
    ask.restype = _HeapInfo
    told = ask()
    return int(told.uordblks + told.hblkhd)


class PeakMemory:
    """Of the steps: models are made on the host, which for a CPU rank is its own memory, and of which a part may stay.
    What the built engine holds counts, and not what building it took.

    On a GPU torch counts by itself. On the CPU its profiler hears of every allocation: from before the engine is built
    until two warm-up steps are done, so that no timed step is slowed down.

    Counted is what comes from torch's own allocator in the thread that trains: tensors, and what libraries ask of torch
    while an operation runs. The samples are loaded before, and what gloo and Python hold is not torch's. What another
    thread gives back, as gloo's do, is not heard of. How much that is, the C library knows in the end; it is taken to
    have gone little by little.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.watching = False
        self.held_bytes = 0
        self.heap_bytes: int | None = None
        """Of the whole process, when watching began; None where the C library does not tell."""
        self.peak_bytes: int | None = None
        forget_peak_memory(device)

    def __enter__(self) -> PeakMemory:
        return self

    def watch(self, *, anyway: bool = False, steps: int) -> None:
        """From here on; not a run whose first steps are timed, unless anyway, nor while somebody else is profiling."""
        if self.device.type == "cpu" and (anyway or steps >= FEWEST_STEPS) and not _profiler_enabled():
            self._start()

    def look(self) -> int:
        """The engine is built: what is held by now, of what was watched; the peak is that of the steps to come."""
        forget_peak_memory(self.device)
        if self.watching:
            self.stop()
            self.peak_bytes = self.held_bytes
            self._start()
        return self.held_bytes

    def after_step(self, steps: int) -> None:
        if self.watching and steps >= WATCHED_STEPS:
            self.stop()

    def stop(self) -> None:
        if not self.watching:
            return
        self.watching = False
        told: list[list[Any]] = _disable_profiler_legacy()
        changes = [each.cpu_memory_usage() for events in told for each in events if each.kind() == "memory_alloc"]
        unheard = 0
        if self.heap_bytes is not None and (heap_bytes := _heap_bytes()) is not None:
            unheard = max(0, sum(changes) - (heap_bytes - self.heap_bytes))
        held, heard = self.held_bytes, 0
        for number, change in enumerate(changes, 1):
            heard += change
            self.held_bytes = held + heard - unheard * number // len(changes)
            self.peak_bytes = max(self.peak_bytes or 0, self.held_bytes)

    def read(self) -> int | None:
        """None where nothing was watched."""
        return torch.cuda.max_memory_allocated() if self.device.type == "cuda" else self.peak_bytes

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        self.watching = True
        self.heap_bytes = _heap_bytes()
        what = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
        _enable_profiler_legacy(what)
