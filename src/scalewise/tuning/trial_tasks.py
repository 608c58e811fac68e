"""What the process of a trial does: build the engine, time blocks of steps, compare with eager fp32 training.

A rank process keeps one loop open between tasks, so that the repeats of two trials can be interleaved.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import psutil
import torch
from torch import nn
from torch.utils.data import Subset

from scalewise.core.errors import UserError
from scalewise.core.training_options import MOST_PENDING_STEPS, ExecutionOptions, Settings, steps_per_epoch
from scalewise.data.dataset import Data, DataRequest
from scalewise.engines.base import Engine, Job, Place
from scalewise.engines.registry import ENGINES
from scalewise.launch.devices import device_name
from scalewise.models.operator_counts import workload_roofline
from scalewise.models.resolve import resolve
from scalewise.models.workload import Workload
from scalewise.predict.roofline import Roofline
from scalewise.probe.contention import limits_here
from scalewise.runtime.clock import Times, make_clock
from scalewise.runtime.device_memory import FEWEST_STEPS, MemoryLimit, PeakMemory, free_bytes, memory_limit_bytes
from scalewise.runtime.execution import CHANNELS_LAST, StepResult, execution_scope, loss_and_gradients, states
from scalewise.runtime.feed import epoch_order, make_feed
from scalewise.runtime.fourier_convolution import is_supported
from scalewise.sweep.grid import GRAPH_WARM_UP_STEPS, WARM_UP_STEPS
from scalewise.training.results import Request
from scalewise.tuning.result import Deviation

BATCHES_OF_DATA = 4
"""Number of batches that are loaded; a trial repeats them."""
LAST_BIT = 2.0**-23
"""Relative size of the last bit of a number in fp32."""
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


class Rank(Protocol):
    """Worker attributes that a trial uses."""

    @property
    def device(self) -> torch.device: ...


@dataclass(frozen=True)
class ModelFacts:
    """What the search needs to know of the device and the model."""

    device: str
    cuda: bool
    tf32: bool
    """Whether the device has tf32."""
    channels_last: bool
    long_convolutions: int
    data: str
    samples: int
    """Number of loaded samples."""
    memory_bytes: int
    """Memory that a step may use: all of a GPU, half of the free memory of this machine on a CPU."""


@dataclass(frozen=True)
class Opened:
    """A loop that is ready to be timed."""

    execution: str
    first_seconds: float
    """Seconds of the last warm-up step."""
    compile_seconds: float
    peak_memory_bytes: int | None
    notes: list[str]


def _loaded(request: Request) -> Workload:
    """Return the workload with at most BATCHES_OF_DATA batches of data, all of them whole."""
    assert isinstance(request.workload, str)
    return _load(request.workload, request.input_shape, request.classes, request.data, request.settings.batch)


@lru_cache(maxsize=1)
def _load(name: str, input_shape: str | None, classes: int | None, request: DataRequest, batch: int) -> Workload:
    workload = resolve(name, input_shape, classes)
    try:
        data = workload.data(replace(request, samples=request.samples or BATCHES_OF_DATA * batch))
    except UserError:  # there are fewer samples
        data = workload.data(request)
    Settings(batch).check_fits(len(data), data.source)
    count = min(len(data) // batch, BATCHES_OF_DATA) * batch
    if count < len(data):
        data = _first(data, count)
    return replace(workload, data=lambda _: data)


def _first(data: Data, count: int) -> Data:
    tensors = (data.tensors[0][:count], data.tensors[1][:count]) if data.tensors else None
    return Data(data.source, tensors, Subset(data.items, range(count)) if data.items else None)


def facts_task(worker: Rank, request: Request) -> ModelFacts:
    """Return what the search needs to know. Also checks the workload and its data."""
    workload = _loaded(request)
    data = workload.data(DataRequest())
    model = workload.model()
    cuda = worker.device.type == "cuda"
    return ModelFacts(
        device_name(worker.device),
        cuda,
        cuda and torch.cuda.get_device_capability(worker.device)[0] >= 8,
        any(parameter.dim() in CHANNELS_LAST for parameter in model.parameters()),
        sum(is_supported(layer) for layer in model.modules()),
        data.source,
        len(data),
        _memory_bytes(worker.device),
    )


def _memory_bytes(device: torch.device) -> int:
    limit = memory_limit_bytes()
    available = free_bytes(device) if device.type == "cuda" else psutil.virtual_memory().available // 2
    return available if limit is None else min(limit, available)


class TimedLoop:
    """Training loop of one device whose steps are timed in blocks. The weights are trained on, so steps are real."""

    def __init__(self, device: torch.device, request: Request) -> None:
        self.request = request
        settings = request.settings
        settings.check()
        self.workload = _loaded(request)
        self.samples = len(self.workload.data(DataRequest()))
        self.stack = ExitStack()
        self.stack.enter_context(execution_scope(settings.execution_options, device))
        limit = self.stack.enter_context(MemoryLimit(device))
        self.peak = self.stack.enter_context(PeakMemory(device))
        self.times = Times()
        place = Place(0, 1, device)
        data = self.workload.data(DataRequest())
        torch.manual_seed(settings.seed)
        self.job = Job.of(self.workload, data, settings, place, make_clock(device, self.times))
        self.peak.watch(steps=FEWEST_STEPS, limited=limit.limit_bytes is not None)
        with limit.building(self.peak.look):
            self.engine: Engine = ENGINES[request.strategy.name](request.strategy, self.job)
        self.remaining = self.epoch = self.pending = self.done = 0

    def opened(self) -> Opened:
        """Run the warm-up: compile, capture CUDA graphs, and let libraries choose algorithms."""
        graph = self.engine.execution == "graph" or self.job.place.device.type == "cuda"
        seconds = self.block(GRAPH_WARM_UP_STEPS if graph else WARM_UP_STEPS)
        report = self.job.report
        peak = self.peak.read()
        return Opened(self.engine.execution, seconds[-1], report.compile_seconds, peak, list(report.notes))

    def block(self, steps: int) -> list[float]:
        """Run steps without pause; return the seconds of each. The first one of a GPU starts from an idle queue."""
        first = len(self.times.all_seconds)
        for _ in range(steps):
            self._step()
        self._collect()
        return self.times.all_seconds[first:]

    def close(self) -> None:
        self.engine.close()
        self.stack.close()

    def _step(self) -> None:
        batch = self.request.settings.batch
        if self.remaining == 0:
            if self.pending > MOST_PENDING_STEPS - steps_per_epoch(self.samples, batch):
                self._collect()
            batches = list(epoch_order(self.request.settings.seed, self.epoch, self.samples).split(batch))
            self.engine.start_epoch(batches)
            self.remaining, self.epoch = len(batches), self.epoch + 1
        self.engine.step()
        self.remaining -= 1
        self.pending += 1
        self.done += 1
        self.peak.after_step(self.done)

    def _collect(self) -> None:
        self.job.clock.close()
        self.engine.losses()
        self.job.clock.collect()
        self.pending = 0


_loop: TimedLoop | None = None
"""The open loop of this process."""


def open_task(worker: Rank, request: Request, cache: Path) -> Opened:
    """Build the engine of a trial, compile it with an empty cache, and run the warm-up."""
    global _loop
    os.environ[CACHE_VARIABLE] = str(cache)
    _loop = TimedLoop(worker.device, request)
    return _loop.opened()


def block_task(worker: Rank, steps: int) -> list[float]:  # noqa: ARG001
    """Time a block of steps of the open loop."""
    assert _loop is not None
    return _loop.block(steps)


def roofline_task(worker: Rank, request: Request) -> Roofline:
    """Bound a step by the rates of this device."""
    settings = request.settings
    limits, peak = limits_here(worker.device, settings.precision)
    workload = _loaded(request)
    return workload_roofline(
        workload,
        limits,
        batch=settings.batch,
        precision=settings.precision,
        peak=peak,
        optimizer=settings.optimizer,
    )


@dataclass(frozen=True)
class _Reference:
    """Eager fp32 loss and gradients of one batch."""

    result: StepResult
    rounding: float
    """Deviation of the gradients if the weights differ in their last bit."""
    draws: bool
    """Whether the model draws random numbers, as for dropout."""


_references: dict[str, _Reference] = {}


def deviation_task(worker: Rank, request: Request, cache: Path) -> Deviation:
    """Compare the loss and gradients of one batch with eager fp32 training; the reference is computed once."""
    os.environ[CACHE_VARIABLE] = str(cache)
    plain = replace(request, settings=request.settings.with_execution(ExecutionOptions(execution="eager")))
    key = repr(plain)
    if key not in _references:
        result, draws = _one_batch(worker.device, plain)
        rounded, _ = _one_batch(worker.device, plain, perturbed=True)
        _references[key] = _Reference(result, _relative(rounded, result), draws)
    reference = _references[key]
    result, _ = _one_batch(worker.device, request, draws=reference.draws)
    loss = abs(result.loss - reference.result.loss) / max(abs(reference.result.loss), 1e-30)
    return Deviation(loss, _relative(result, reference.result), reference.rounding)


def _one_batch(
    device: torch.device, request: Request, *, perturbed: bool = False, draws: bool = False
) -> tuple[StepResult, bool]:
    """Loss and gradients of the first batch, and whether the model drew random numbers.

    `perturbed`: change every weight in its last bit. `draws`: compiled code draws random numbers as eager code does,
    which takes a second compilation.
    """
    from torch._inductor import config  # takes a second

    settings, options = request.settings, request.settings.execution_options
    workload = _loaded(request)
    feed = make_feed(workload.data(DataRequest()), "auto", torch.device("cpu"), 0)
    batch = next(iter(feed.batches([torch.arange(settings.batch)])))
    torch.manual_seed(settings.seed)
    model = workload.model()
    if perturbed:
        _change_last_bit(model)
    torch.manual_seed(settings.seed + 1)
    before = states()
    with execution_scope(options, device), config.patch(fallback_random=draws):
        result = loss_and_gradients(workload, model, options, device, batch)
    after = states()
    return result, any(not torch.equal(before[name], after[name]) for name in before)


@torch.no_grad()
def _change_last_bit(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.mul_(1 + LAST_BIT * torch.randint(-1, 2, parameter.shape))


def _relative(result: StepResult, reference: StepResult) -> float:
    """Norm of the difference of all gradients, relative to the norm of the reference."""
    difference = sum(
        float((result.gradients[name].double() - gradient.double()).square().sum())
        for name, gradient in reference.gradients.items()
        if name in result.gradients
    )
    total = sum(float(gradient.double().square().sum()) for gradient in reference.gradients.values())
    return float((difference / max(total, 1e-60)) ** 0.5)
