"""A device's peak memory, of one run alone: what torch's allocator had given out at most."""

from __future__ import annotations

import ctypes
import gc
from itertools import chain
from typing import Any

import torch
from torch._C._autograd import (
    _disable_profiler_legacy,
    _enable_profiler_legacy,
    _enable_record_function,
    _profiler_enabled,
)
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch.autograd.profiler import record_function

from scalewise.step.clock import Clock, HostClock
from scalewise.step.heard import Live, Seen

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


_SEEN = "scalewise saw"


def _write_down(*, step_ended: bool) -> None:
    """Among the profiler's own events, so that it stands where it belongs."""
    if (heap_bytes := _heap_bytes()) is not None:
        _enable_record_function(True)
        with record_function(f"{_SEEN} {heap_bytes} {int(step_ended)}"):
            pass
        _enable_record_function(False)


def _told(event: Any) -> int | Seen:
    if event.kind() == "memory_alloc":
        return int(event.cpu_memory_usage())
    *_, heap_bytes, step_ended = event.name().split()
    return Seen(int(heap_bytes), step_ended == "1")


def _is_ours(event: Any) -> bool:
    return event.kind() == "push" and str(event.name()).startswith(_SEEN)


class PeakMemory:
    """Of the steps: models are made on the host, which for a CPU rank is its own memory, and of which a part may stay.
    What the built engine holds counts, and not what building it took.

    On a GPU torch counts by itself. On the CPU its profiler hears of every allocation: from before the engine is built
    until two warm-up steps are done, so that no timed step is slowed down.

    Counted is what comes from torch's own allocator in the thread that trains: tensors, and what libraries ask of torch
    while an operation runs. The samples are loaded before, and what gloo and Python hold is not torch's. What another
    thread gives back, as gloo's do, is not heard of: after every phase the C library is asked how much is really there.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.clock: HostClock | None = None
        self.collects = False
        """Whether garbage is to be collected again afterwards."""
        self.watching = False
        self.held_bytes = 0
        self.heap_bytes = 0
        """Of the whole process, when watching began; 0 where the C library does not tell."""
        self.peak_bytes: int | None = None
        forget_peak_memory(device)

    def __enter__(self) -> PeakMemory:
        if self.device.type == "cuda":
            gc.collect()  # an earlier run's model, held by cycles, would count and take room
        return self

    def watch(self, clock: Clock, *, anyway: bool = False, steps: int) -> None:
        """From here on; not a run whose first steps are timed, unless anyway, nor while somebody else is profiling."""
        if isinstance(clock, HostClock) and (anyway or steps >= FEWEST_STEPS) and not _profiler_enabled():
            self.clock = clock
            clock.after_lap = self._look_around
            # What an earlier run left behind is none of this one's: freed while this one is watched, it would be missed
            # from what this one holds.
            gc.collect()
            self.collects = gc.isenabled()
            gc.disable()
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
        if not self.watching:
            return
        _write_down(step_ended=True)
        if steps >= WATCHED_STEPS:
            self.stop()
            self._leave()

    def stop(self) -> None:
        if not self.watching:
            return
        self.watching = False
        told: list[list[Any]] = _disable_profiler_legacy()
        _enable_record_function(True)
        events = [_told(each) for each in chain(*told) if each.kind() == "memory_alloc" or _is_ours(each)]
        del told  # it is in use by itself
        live = Live(self.held_bytes, self.heap_bytes)
        live.follow(events)
        if (heap_bytes := _heap_bytes()) is not None:
            live.follow([Seen(heap_bytes)])
        self.held_bytes, self.peak_bytes = live.bytes, max(self.peak_bytes or 0, live.most)

    def read(self) -> int | None:
        """None where nothing was watched."""
        return torch.cuda.max_memory_allocated() if self.device.type == "cuda" else self.peak_bytes

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._leave()

    def _leave(self) -> None:
        if self.clock:
            self.clock.after_lap = None
        if self.collects:
            gc.enable()
            self.collects = False

    def _look_around(self) -> None:
        """Between the phases of a step: what was given back unheard, until here, is gone."""
        if self.watching:
            _write_down(step_ended=False)

    def _start(self) -> None:
        self.watching = True
        self.heap_bytes = _heap_bytes() or 0
        what = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
        _enable_profiler_legacy(what)
        # Its notes on every operation are not read, and take memory too.
        _enable_record_function(False)
