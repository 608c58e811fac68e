"""What a CPU and a GPU do in a second: copies, a convolution, moving a task there and back, and the cores left free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time

import torch
from torch import Tensor, nn

CPU = torch.device("cpu")
FLOAT_BYTES = 4
CHANNELS, KERNELS, KERNEL, CLIP = 1, 50, 200, 12_000
"""The first layer of the study's convolutional model, on a clip of its length."""

FEWEST_CALLS, ENOUGH_CALLS, MOST_CALLS = 3, 30, 500
STRETCH = 4


@dataclass(frozen=True)
class Task:
    """A task of one size: computing it on the CPU, or moving its data to the GPU and back and computing it there."""

    kind: str
    size: int
    """Rows and columns of each square matrix."""
    cpu_seconds: float
    copy_seconds: float | None
    gpu_seconds: float | None
    """None without a GPU, as is the copy."""

    @property
    def worth_moving(self) -> bool | None:
        if self.copy_seconds is None or self.gpu_seconds is None:
            return None
        return self.copy_seconds + self.gpu_seconds < self.cpu_seconds


def seconds_of(work: Callable[[], object], device: torch.device, budget_seconds: float) -> float:
    """The quickest of the calls, which other load touched least, after two to warm up.

    Where threads fight for busy cores most calls wait for one that is not run: the budget is then stretched for more.
    Whatever the device still has to do is waited for.
    """

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(2):
        work()
    wait()
    times: list[float] = []
    began = perf_counter()
    while len(times) < FEWEST_CALLS or (
        len(times) < MOST_CALLS
        and perf_counter() - began < budget_seconds * (STRETCH if len(times) < ENOUGH_CALLS else 1)
    ):
        start = perf_counter()
        work()
        wait()
        times.append(perf_counter() - start)
    return min(times)


def memory_GBps(device: torch.device, megabytes: int, budget_seconds: float) -> float:
    """Bytes read plus bytes written, of one array copied into another; far larger than any cache."""
    source = torch.ones(megabytes * 1_000_000 // FLOAT_BYTES, device=device)
    target = torch.empty_like(source)
    seconds = seconds_of(lambda: target.copy_(source), device, budget_seconds)
    return 2 * source.nbytes / seconds / 1e9


def convolution_seconds(device: torch.device, batch: int, budget_seconds: float) -> float:
    """Forward and backward of one layer; its data is where it computes."""
    layer = nn.Conv1d(CHANNELS, KERNELS, KERNEL, padding=KERNEL // 2).to(device)
    clips = torch.randn(batch, CHANNELS, CLIP, device=device)

    def work() -> None:
        layer(clips).sum().backward()

    return seconds_of(work, device, budget_seconds)


def tasks(sizes: Sequence[int], gpu: torch.device | None, budget_seconds: float) -> list[Task]:
    """Sums and products of two square matrices: little work per byte, and much."""
    kinds: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"sum": torch.add, "product": torch.mm}
    found = []
    for kind, operation in kinds.items():
        for size in sizes:
            left, right = torch.randn(size, size), torch.randn(size, size)
            cpu = _computing(operation, left, right, CPU, budget_seconds)
            copy = _copying(left, right, gpu, budget_seconds) if gpu else None
            there = _computing(operation, left.to(gpu), right.to(gpu), gpu, budget_seconds) if gpu else None
            found.append(Task(kind, size, cpu, copy, there))
    return found


def _computing(
    operation: Callable[[Tensor, Tensor], Tensor],
    left: Tensor,
    right: Tensor,
    device: torch.device,
    budget_seconds: float,
) -> float:
    return seconds_of(lambda: operation(left, right), device, budget_seconds)


def _copying(left: Tensor, right: Tensor, gpu: torch.device, budget_seconds: float) -> float:
    """Both operands up, the result down, as a plain program does it: from memory that is not pinned."""
    result = torch.empty_like(left, device=gpu)

    def there_and_back() -> None:
        left.to(gpu)
        right.to(gpu)
        result.cpu()

    return seconds_of(there_and_back, gpu, budget_seconds)


def cores_busy(device: torch.device, batch: int, seconds: float) -> float:
    """CPU seconds per second while a convolution layer trains on the device."""
    layer = nn.Conv1d(CHANNELS, KERNELS, KERNEL, padding=KERNEL // 2).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    clips = torch.randn(batch, CHANNELS, CLIP, device=device)
    ended = torch.cuda.Event(blocking=True) if device.type == "cuda" else None
    began, began_cpu = perf_counter(), process_time()
    while perf_counter() - began < seconds:
        for _ in range(4):
            optimizer.zero_grad()
            layer(clips).sum().backward()
            optimizer.step()
        if ended:
            ended.record()
            ended.synchronize()  # sleeps instead of spinning: waiting must not count as work
    return (process_time() - began_cpu) / (perf_counter() - began)
