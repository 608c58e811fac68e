"""Measure compute, memory and copy rates of a device: alone, beside other busy devices, and during communication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from scalewise.core.statistics import low_quantile
from scalewise.hardware.gpus import Gpu, find_gpu
from scalewise.launch.devices import device_name
from scalewise.launch.existing_processes import InProcess
from scalewise.launch.placement import Placement
from scalewise.launch.worker import Worker
from scalewise.predict.roofline import DeviceLimits, achievable_limits, peak_limits
from scalewise.probe.link_benchmarks import max_over_ranks, some_bytes, synchronize
from scalewise.runtime.optimizers import set_precision

SIDES = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of the matrix product, large enough for the best rate of the device."""
COPY_BYTES = {"cpu": 128 * 2**20, "cuda": 2 * 2**30}
"""Bytes of the copied tensor, several times the last cache."""
SECONDS = 0.3
"""Time limit of each of the two measurements; the fastest repetition counts."""
FEWEST = 3
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def limits_of(gpu: Gpu | None, precision: str) -> tuple[DeviceLimits, DeviceLimits | None]:
    """Return the achievable rates and the peaks of a GPU, or of this machine's device if it is None."""
    if gpu is not None:
        return achievable_limits(gpu), peak_limits(gpu)
    with InProcess(Placement(1)) as session:
        return limits_here(session.device, precision)


def limits_here(device: torch.device, precision: str) -> tuple[DeviceLimits, DeviceLimits | None]:
    """Return the rates of a device of this machine, and the peaks of its specification if there is one.

    A device without a specification, such as a CPU core, is measured in the given precision and in fp32.
    """
    name = device_name(device)
    gpu = find_gpu(name) if device.type == "cuda" else None
    return limits_of(gpu, precision) if gpu else (measured_limits(device, precision), None)


def measured_limits(device: torch.device, precision: str) -> DeviceLimits:
    """Time a matrix product and a copy on the device, which takes about a second."""
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        rates = {name: _product_TFLOPS(device, name) for name in dict.fromkeys(("fp32", precision))}
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32
    return DeviceLimits(device_name(device), "measured", rates, _copy_GBps(device))


def _product_TFLOPS(device: torch.device, precision: str) -> float:
    set_precision("tf32" if precision == "tf32" else "fp32", device)
    side = SIDES[device.type]
    left, right = (torch.rand(side, side, dtype=DTYPES.get(precision), device=device) for _ in range(2))
    output = torch.empty_like(left)
    return 2 * side**3 / _fastest_seconds(lambda: torch.mm(left, right, out=output), device) / 1e12


def _copy_GBps(device: torch.device) -> float:
    """Bytes read and written per second by a copy."""
    source = torch.ones(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _fastest_seconds(lambda: target.copy_(source), device) / 1e9


def _fastest_seconds(operation: Callable[[], Tensor], device: torch.device) -> float:
    fastest, repetitions, started = float("inf"), 0, perf_counter()
    while repetitions < FEWEST or perf_counter() - started < SECONDS:
        _wait(device)
        begin = perf_counter()
        operation()
        _wait(device)
        fastest = min(fastest, perf_counter() - begin)
        repetitions += 1
    return fastest


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


STREAMED_BYTES = {"cpu": 48 * 2**20, "cuda": 512 * 2**20}
"""Tensor size of the memory benchmarks, larger than the caches."""
SIDE = {"cpu": 384, "cuda": 4096}
"""Rows and columns of the multiplied matrices. On a CPU they fit the caches of one core."""
TINY_CALLS = 200
PIECE_SECONDS = 0.02
"""Seconds of work between two readings of the clock, about a short training step."""
FEWEST_PIECES = 4
TURNS = 3
"""Turns of measurements that are compared with each other, so that both meet the same load on the machine."""


@dataclass(frozen=True)
class DeviceRates:
    """Measured throughput of one device."""

    TFLOPS: float
    memory_GBps: float
    """Bandwidth of an element-wise update, counting bytes read and written."""
    copy_GBps: float
    """Bandwidth of a copy within the device's memory, counting each byte once."""
    launch_us: float


def own_seconds(seconds: float) -> float:
    return seconds


def measure_rates(device: torch.device, seconds: float, combine: Callable[[float], float] = own_seconds) -> DeviceRates:
    """Measure the rates of a device in fp32, without tensor cores.

    `combine` maps the seconds of this rank to those that count, such as those of the slowest rank.
    """
    side = SIDE[device.type]
    left, right = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    elements = STREAMED_BYTES[device.type] // 4
    target, source = torch.ones(elements, device=device), torch.ones(elements, device=device)
    tiny = torch.ones(1, device=device)

    def launch_many() -> None:
        for _ in range(TINY_CALLS):
            tiny.add_(1.0)

    multiply_seconds = usual_seconds(lambda: torch.mm(left, right), device, seconds / 4, combine)
    copy_seconds = usual_seconds(lambda: target.copy_(source), device, seconds / 4, combine)
    launch_seconds = usual_seconds(launch_many, device, seconds / 4, combine)
    return DeviceRates(
        TFLOPS=2 * side**3 / multiply_seconds / 1e12,
        memory_GBps=streamed_GBps(device, seconds / 4, combine),
        copy_GBps=4 * elements / copy_seconds / 1e9,
        launch_us=launch_seconds / TINY_CALLS * 1e6,
    )


def streamed_GBps(
    device: torch.device, seconds: float, combine: Callable[[float], float] = own_seconds, bytes: int | None = None
) -> float:
    """Memory bandwidth of an element-wise update, counting bytes read and written."""
    elements = (bytes or STREAMED_BYTES[device.type]) // 4
    target, source = torch.ones(elements, device=device), torch.ones(elements, device=device)
    update_seconds = usual_seconds(lambda: target.add_(source, alpha=1e-6), device, seconds, combine)
    return 3 * target.nbytes / update_seconds / 1e9


def usual_seconds(
    work: Callable[[], object], device: torch.device, seconds: float, combine: Callable[[float], float] = own_seconds
) -> float:
    """Lower quartile of the seconds of a call, which other programs disturb less than the median.

    It is taken over at least four pieces and as many as fit `seconds`; two calls warm up.
    """

    def seconds_per_call(calls: int) -> float:
        synchronize(device)
        started = perf_counter()
        for _ in range(calls):
            work()
        synchronize(device)
        return combine((perf_counter() - started) / calls)

    seconds_per_call(1)
    calls = max(1, round(PIECE_SECONDS / seconds_per_call(1)))
    pieces: list[float] = []
    while len(pieces) < FEWEST_PIECES or calls * sum(pieces) < seconds:
        pieces.append(seconds_per_call(calls))
    return low_quantile(pieces)


REDUCED_BYTES = 16 * 2**20
STREAMED_BY_HOST_BYTES = 256 * 2**20


@dataclass(frozen=True)
class SharedRates:
    """Rates of a device while the others wait, and while all are busy."""

    alone: DeviceRates
    """Rates of rank 0."""
    together: DeviceRates
    """Rates of the slowest rank at every piece of work."""


def rates_in_turn(worker: Worker, seconds: float) -> SharedRates:
    """Measure the rates of rank 0 alone and those of all ranks together in turn; the median of the turns counts.

    Together, all start a piece of work at the same time and the slowest counts, as in training: cores of a shared
    machine slow down at different times, so the slowest of all is slower than any one core.
    """
    world = dist.group.WORLD
    assert world is not None
    alone: list[DeviceRates] = []
    together: list[DeviceRates] = []
    for _ in range(TURNS):
        dist.barrier()
        if worker.rank == 0:
            alone.append(measure_rates(worker.device, seconds / TURNS))
        worker.report("alone")
        dist.barrier()
        together.append(measure_rates(worker.device, seconds / TURNS, lambda own: max_over_ranks(own, worker, world)))
    slowest = _median_rates(together)
    return SharedRates(_median_rates(alone) if alone else slowest, slowest)


def _median_rates(turns: Sequence[DeviceRates]) -> DeviceRates:
    return DeviceRates(*(median(values) for values in zip(*map(astuple, turns), strict=True)))


def host_memory_together(worker: Worker, seconds: float) -> float:
    """Host memory bandwidth (GB/s) of each rank's process with all ranks busy; tensors exceed the shared caches."""
    world = dist.group.WORLD
    assert world is not None
    slowest = partial(max_over_ranks, worker=worker, group=world)
    return streamed_GBps(torch.device("cpu"), seconds, slowest, STREAMED_BY_HOST_BYTES)


@dataclass(frozen=True)
class ComputeDuringReduce:
    """Seconds of the same compute on one rank without communication and during all-reduces of `bytes` bytes."""

    alone_seconds: float
    seconds: float
    """Seconds of the compute during the all-reduces."""
    reduced: int
    """Number of all-reduces that ran during the compute."""
    bytes: int
    reduce_seconds: float
    """Seconds of one all-reduce without compute."""

    @property
    def slowdown(self) -> float:
        return self.seconds / self.alone_seconds

    @property
    def lost_seconds_per_reduce(self) -> float:
        """Seconds that one all-reduce adds to the compute."""
        return max(0.0, self.seconds - self.alone_seconds) / max(self.reduced, 1)


def compute_during_reduce(worker: Worker, seconds: float) -> ComputeDuringReduce:
    """Time compute on all ranks, alone and during all-reduces; every rank makes the same number of calls."""
    assert dist.group.WORLD is not None
    side = SIDE[worker.device.type]
    left, right = torch.randn(side, side, device=worker.device), torch.randn(side, side, device=worker.device)
    tensor = some_bytes(REDUCED_BYTES, worker.device)

    def compute(times: int) -> float:
        synchronize(worker.device)
        started = perf_counter()
        for _ in range(times):
            torch.mm(left, right)
        synchronize(worker.device)
        return perf_counter() - started

    def reduce() -> float:
        dist.barrier()
        started = perf_counter()
        dist.all_reduce(tensor)
        synchronize(worker.device)
        return perf_counter() - started

    compute(3)
    slowest = max_over_ranks(compute(20) / 20, worker, dist.group.WORLD)
    alone_reduce = low_quantile([reduce() for _ in range(8)])
    count = max(1, int(seconds / 2 / TURNS / max_over_ranks(alone_reduce, worker, dist.group.WORLD)))
    # Long enough to outlast all all-reduces even if each takes three times as long as alone.
    times = max(1, int(3 * count * alone_reduce / slowest))
    times = int(max_over_ranks(times, worker, dist.group.WORLD))
    alone: list[float] = []
    both: list[float] = []
    for _ in range(TURNS):
        dist.barrier()
        alone.append(compute(times))
        dist.barrier()
        works = [dist.all_reduce(tensor, async_op=True) for _ in range(count)]
        both.append(compute(times))
        for work in works:
            if work is not None:
                work.wait()
        synchronize(worker.device)
    return ComputeDuringReduce(min(alone), min(both), count, REDUCED_BYTES, alone_reduce)


SMALL, LARGE = 4096, 64 * 2**20


@dataclass(frozen=True)
class CopyRate:
    """Copies between pinned host memory and the device; of the two directions the slower."""

    GBps: float
    latency_us: float


def copies_alone(worker: Worker, seconds: float) -> CopyRate | None:
    """Copy rate of the first device while the others wait; None on the others."""
    dist.barrier()
    rate = _copy_rate(worker.device, seconds) if worker.rank == 0 else None
    dist.barrier()
    return rate


def copies_together(worker: Worker, seconds: float) -> CopyRate:
    dist.barrier()
    rate = _copy_rate(worker.device, seconds)
    dist.barrier()
    return rate


def _copy_rate(device: torch.device, seconds: float) -> CopyRate:
    def slower_direction(bytes: int) -> float:
        on_host = torch.empty(bytes, dtype=torch.uint8, pin_memory=True)
        on_device = torch.empty(bytes, dtype=torch.uint8, device=device)
        return max(
            usual_seconds(lambda: on_device.copy_(on_host, non_blocking=True), device, seconds / 4),
            usual_seconds(lambda: on_host.copy_(on_device, non_blocking=True), device, seconds / 4),
        )

    latency = slower_direction(SMALL)
    return CopyRate(LARGE / max(slower_direction(LARGE) - latency, 1e-9) / 1e9, latency * 1e6)
