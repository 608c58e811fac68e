"""Measure the peak memory of a run on its device, and limit it."""

from __future__ import annotations

import ctypes
import gc
import importlib
import math
import mmap
import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, Thread
from types import TracebackType

import torch
from torch import Tensor, nn

from scalewise.core.errors import UserError
from scalewise.runtime.process_settings import SMALL, keep_freed_memory, map_large_blocks, return_freed_memory

WATCHED_STEPS = 2
"""The first step loads libraries and creates the optimizer state; the second step is measured."""
FEWEST_STEPS = 8
"""Shortest run that is measured on a CPU: both watched steps are warm-up there."""
MARGIN = 2**20
"""Bytes kept in place beyond those of a step."""
THREADS = 4
"""Number of threads of a rank, in addition to its own, that allocate at the same time."""


def forget_peak_memory(device: torch.device) -> None:
    """Reset the peak of a GPU, which an earlier run in this process may have set."""
    if device.type == "cuda" and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def can_measure_host() -> bool:
    """Whether peaks can be measured on the CPU: on Linux with glibc 2.33 or later, and without `ulimit -v`."""
    unlimited = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    return unlimited and _heap() is not None and _bytes_below_peak() is not None


def _bytes_below_peak() -> int | None:
    """Difference between the largest size so far (VmPeak) and the present size (VmSize) of the address space."""
    status = Path("/proc/self/status")
    text = status.read_text() if status.exists() else ""
    sizes = {name: int(size) * 1024 for name, size in re.findall(r"^(VmPeak|VmSize):\s+(\d+) kB", text, re.MULTILINE)}
    return sizes["VmPeak"] - sizes["VmSize"] if len(sizes) == 2 else None


def _load_libraries() -> None:
    """Load what the first step would load: torch._dynamo (by the optimizer), autograd, oneDNN and the BLAS.

    Threads allocate too: glibc reserves 64 MB for each thread that does at the same time as others. Threads that start
    later take over what ended ones have left.
    """
    all_allocated = Barrier(THREADS)
    threads = [Thread(target=lambda: (bytearray(SMALL), all_allocated.wait())) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    importlib.import_module("torch._dynamo")
    with torch.random.fork_rng(devices=[]):  # the run's own random numbers stay as they are
        layers = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), nn.Linear(4, 1))
        layers(torch.zeros(1, 1, 4, 4)).sum().backward()
    torch.optim.Adam(layers.parameters()).step()


class _HeapInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def _heap() -> _HeapInfo | None:
    """Statistics of malloc; None without glibc 2.33 or later."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return None
    mallinfo.restype = _HeapInfo
    heap: _HeapInfo = mallinfo()
    return heap


def _mapped_bytes() -> int:
    """Bytes of the blocks that malloc has mapped separately."""
    heap = _heap()
    return int(heap.hblkhd) if heap else 0


def _occupy_free_blocks() -> list[Tensor]:
    """Allocate the free blocks of the heap, so that large blocks that are allocated later are mapped separately."""
    blocks: list[Tensor] = []
    heap = _heap()
    size = 1 << int(heap.fordblks).bit_length() if heap else 0
    while size >= SMALL:
        mapped = _mapped_bytes()
        block = torch.empty(size, dtype=torch.uint8)
        if _mapped_bytes() > mapped:  # no free block is as large as this
            size //= 2
        else:
            blocks.append(block)
        del block
    return blocks


class HostPeak:
    """Peak of the memory that malloc has given out since this object was created, in all threads of this process.

    While this object is open, malloc maps every large block separately and unmaps it when it is freed. The address
    space then grows and shrinks with the memory in use, and the kernel keeps its peak (VmPeak). That peak cannot be
    reset. Instead, inaccessible memory is reserved until the address space is as large as it has ever been.
    """

    def __init__(self) -> None:
        gc.collect()  # otherwise an earlier run's model could be freed meanwhile and be missing from the difference
        self.occupied: list[Tensor] = []
        self.reserved: list[mmap.mmap] = []
        self.before = 0
        self.before = self.reset()

    def reset(self) -> int:
        """Start a new peak. Return the bytes in use."""
        map_large_blocks()
        self.occupied += _occupy_free_blocks()
        if below_peak := _bytes_below_peak():
            self.reserved.append(mmap.mmap(-1, below_peak, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0))
        return self.in_use()

    def in_use(self) -> int:
        return _mapped_bytes() - self.before

    def read(self) -> int:
        """Peak in bytes since the last reset."""
        return self.in_use() + (_bytes_below_peak() or 0)

    def close(self, *, keep_freed: bool) -> None:
        """Stop measuring. `keep_freed`: malloc keeps freed memory again, and has enough of it in place for the steps
        that follow, so that they cause no page faults."""
        step_bytes = self.read() - self.in_use()
        for block in self.reserved:
            block.close()
        self.occupied.clear()
        if keep_freed:
            keep_freed_memory()
            # One piece, which the next step can divide; larger, because small allocations may split it first.
            torch.zeros(step_bytes + step_bytes // 32 + MARGIN, dtype=torch.uint8)


class PeakMemory:
    """Peak memory of a run's steps: what the built engine holds and what steps add. What building took does not count:
    models are built on the host, which is the device of a CPU rank.

    On a GPU this is `torch.cuda.max_memory_allocated`. On a CPU rank it is the peak of `HostPeak` in the second step.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.host: HostPeak | None = None
        self.limited = False
        self.peak_bytes: int | None = None
        forget_peak_memory(device)

    def __enter__(self) -> PeakMemory:
        if self.device.type == "cuda":
            gc.collect()  # an earlier run's model, held by cycles, would count and take room
        return self

    def watch(self, *, steps: int, limited: bool) -> None:
        """Start to measure the peak memory; call this before the engine is built.

        `limited`: the run has a memory limit. It is measured even if it has few steps, and freed memory is returned to
        the kernel during the whole run (see `MemoryLimit`).
        """
        if self.device.type == "cpu" and (limited or steps >= FEWEST_STEPS) and can_measure_host():
            _load_libraries()
            self.limited = limited
            self.host = HostPeak()

    def look(self) -> int:
        """Return the bytes that the built engine holds, 0 if unknown. The peak is that of the steps that follow."""
        forget_peak_memory(self.device)
        return self.host.reset() if self.host else 0

    def after_step(self, steps: int) -> None:
        if self.host and steps < WATCHED_STEPS:
            self.host.reset()
        else:
            self._stop()

    def read(self) -> int | None:
        """Peak in bytes; None if nothing was measured."""
        self._stop()
        return torch.cuda.max_memory_allocated() if self.device.type == "cuda" else self.peak_bytes

    def _stop(self) -> None:
        if self.host:
            self.peak_bytes = self.host.read()
            self.host.close(keep_freed=not self.limited)
            self.host = None

    def __exit__(self, *_: object) -> None:
        self._stop()


MEMORY_LIMIT = "SCALEWISE_MEMORY_LIMIT_GB"
"""Environment variable that limits the memory of each device, to emulate a smaller one."""


THREAD_STACK_BYTES = 2**24
"""Memory for the stacks of threads started later, which do not count as device memory."""


class DeviceFull(MemoryError):
    """The tensors that a rank keeps do not fit in the memory of its device."""


def memory_limit_bytes() -> int | None:
    """Return the value of SCALEWISE_MEMORY_LIMIT_GB in bytes; None if it is not set."""
    text = os.environ.get(MEMORY_LIMIT)
    if text is None:
        return None
    try:
        limit_GB = float(text)
    except ValueError:
        limit_GB = math.nan
    if not 0 < limit_GB < math.inf:
        raise UserError(f"{MEMORY_LIMIT} is '{text}'; it must be a number of GB above 0")
    return round(limit_GB * 1e9)


def free_bytes(device: torch.device) -> int:
    """Return the GPU memory that this process may still allocate."""
    free = int(torch.cuda.mem_get_info(device)[0])
    limit = memory_limit_bytes()
    return free if limit is None else max(0, min(free, limit - torch.cuda.memory_allocated(device)))


class MemoryLimit:
    """Limits the memory of a CPU rank with RLIMIT_DATA; on a GPU the allocator of torch enforces the limit.

    Models are created on the host and then moved to the device, sometimes in part. On a CPU rank, host and device share
    one process. So the limit is set only after the engine is built, and the tensors that it keeps must fit. Samples,
    shared memory and loaded libraries count as host memory. Freed memory is returned to the kernel at once, because it
    would count; this costs some page faults.
    """

    def __init__(self, device: torch.device) -> None:
        limit = memory_limit_bytes()
        self.limit_bytes = limit if device.type == "cpu" else None
        self.before = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    def __enter__(self) -> MemoryLimit:
        if self.limit_bytes is not None:
            self.before = resource.getrlimit(resource.RLIMIT_DATA)
            importlib.import_module("torch._dynamo")  # else loaded by the first update, and counted as device memory
            return_freed_memory()
        return self

    @contextmanager
    def building(self, measure_bytes: Callable[[], int]) -> Iterator[None]:
        """Build an engine in this block, then set the limit; `measure_bytes()` gives the bytes of tensors it keeps."""
        yield
        kept_bytes = measure_bytes()
        if self.limit_bytes is None:
            return
        if kept_bytes > self.limit_bytes:
            raise DeviceFull(
                f"tensors kept on the device take {kept_bytes / 1e9:.3g} GB, but {MEMORY_LIMIT} allows "
                f"{self.limit_bytes / 1e9:g} GB"
            )
        limit = _data_bytes() + self.limit_bytes - kept_bytes + THREAD_STACK_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, self.before[1]))

    def lift(self) -> None:
        """Remove the limit, for work that does not count as device memory."""
        if self.limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_DATA, self.before)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lift()
        if self.limit_bytes is not None:
            keep_freed_memory()


def _data_bytes() -> int:
    """Return the memory of this process that counts for RLIMIT_DATA."""
    match = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024
