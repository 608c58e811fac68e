"""Plan the peak memory of a run without training, and suggest remedies for a run that ran out of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from scalewise.core.errors import (
    Accumulate,
    Failure,
    NoStrategyFits,
    Remedy,
    SmallerBatch,
    TooLarge,
    UserError,
    UseStrategy,
)
from scalewise.data.dataset import Data, DataRequest
from scalewise.launch.placement import Placement, under_torchrun
from scalewise.launch.session import Session
from scalewise.launch.worker import Worker
from scalewise.models.footprint import footprint_of
from scalewise.models.resolve import resolve
from scalewise.models.workload import Workload
from scalewise.predict.memory import OPTIMIZER_COPIES, Memory, peak_memory
from scalewise.runtime.device_memory import memory_limit_bytes
from scalewise.runtime.feed import why_not_resident
from scalewise.runtime.layer_memory import layers_of
from scalewise.runtime.optimizers import set_precision
from scalewise.strategies.base import Strategy
from scalewise.strategies.plan import Footprint
from scalewise.strategies.rank_memory import LayerMemories, TrainingRun
from scalewise.strategies.registry import STRATEGIES, strategy_of
from scalewise.training.results import Request


def planned_memory(
    workload: str, strategy: str, devices: int, batch: int, device_kind: str = "cpu", samples: int | None = None
) -> list[Memory]:
    """Planned peak memory of every rank, including samples that stay on a GPU.

    Empty if the model cannot be planned because it needs real numbers.
    """
    chosen, resolved = strategy_of(strategy), resolve(workload)
    data = resolved.data(DataRequest(samples=samples))
    device = torch.device("cpu" if device_kind == "cpu" else "cuda")
    set_precision("fp32", device)  # as in the run: cuDNN's workspaces depend on the precision
    footprint = replace(
        footprint_of(resolved, data),
        room_bytes=memory_limit_bytes(),
        state_copies=OPTIMIZER_COPIES.get(resolved.optimizer, 0),
        on_gpu=device_kind != "cpu",
    )
    resident = 0 if device_kind == "cpu" else len(data) * (footprint.input_bytes + footprint.target_bytes)
    run = TrainingRun(devices, batch, footprint, device_kind != "cpu", device_kind == "slice", resident_bytes=resident)
    layers = layers_of(resolved, data, chosen.samples_at_once(run), device)
    limit = None if device.type == "cpu" else memory_limit_bytes()
    ranks = range(run.devices if layers else 0)
    return [peak_memory(chosen.rank_memory(rank, run, layers), resolved.optimizer, limit) for rank in ranks]


@dataclass(frozen=True)
class MemoryRequest:
    """A run whose memory is to be planned."""

    workload: str
    strategy: str
    devices: int
    batch: int
    samples: int | None = None


def planned_on(device_kind: str, runs: Sequence[MemoryRequest], slice_percent: int | None = None) -> list[list[Memory]]:
    """Planned peak memory of every rank of several runs.

    Slices are planned on a slice, because cuDNN's workspaces depend on the number of multiprocessors.
    """
    if device_kind != "slice":
        return _plan(None, device_kind, runs)
    with Session(Placement(1, device_kind, slice_percent=slice_percent)) as session:
        memories: list[list[Memory]]
        [memories] = session.run(_plan, device_kind, runs)
    return memories


def _plan(_: Worker | None, device_kind: str, runs: Sequence[MemoryRequest]) -> list[list[Memory]]:
    return [
        planned_memory(run.workload, run.strategy, run.devices, run.batch, device_kind, run.samples) for run in runs
    ]


FRAGMENTATION = 1.1
"""Assumed ratio of reserved to allocated memory on a GPU. A memory limit applies to reserved memory."""
MORE_DEVICES = (2, 4, 8)
"""Device counts to try if a model split over the present devices does not fit."""


def with_remedies(failure: Failure, request: Request, placement: Placement) -> Failure:
    """Add remedies to an out-of-memory failure: planned ones, or general ones if the plan does not explain it."""
    planner = _Planner(request, placement)
    limit = planner.limit_bytes(placement.devices)
    one_sample = None if limit is None else planner.peak(request.strategy, placement.devices, batch=1)
    if limit is None or one_sample is None or (one_sample.total <= limit and request.settings.batch == 1):
        return replace(failure, remedies=unplanned_remedies(failure, request.strategy, limited=limit is not None))
    candidates = list(planner.candidates())
    fitting = [remedy for remedy, fits in candidates if fits]
    if one_sample.total <= limit:
        return replace(failure, too_large=None, remedies=(*smaller_batch(request.strategy), *fitting))
    too_large = TooLarge() if one_sample.weights > limit else TooLarge(one_sample.total)
    if fitting:
        return replace(failure, too_large=too_large, remedies=tuple(fitting))
    least = min((remedy for remedy, _ in candidates), key=lambda remedy: remedy.planned_bytes or 0, default=None)
    return replace(failure, too_large=too_large, remedies=(NoStrategyFits(limit, least),))


def unplanned_remedies(
    failure: Failure, strategy: Strategy, *, limited: bool, can_accumulate: bool = True
) -> tuple[Remedy, ...]:
    """Remedies for running out of memory that need no plan.

    `limited`: devices have less memory than their host. `can_accumulate`: the command has --accumulate.
    """
    others = _for_large_models(strategy) if limited else {}
    batch = () if failure.too_large else smaller_batch(strategy, can_accumulate=can_accumulate)
    return (*batch, *(UseStrategy(name) for name, other in others.items() if other is not strategy))


def smaller_batch(strategy: Strategy, *, can_accumulate: bool = True) -> tuple[Remedy, ...]:
    return (SmallerBatch(), *((Accumulate(2),) if can_accumulate and not strategy.splits_batch else ()))


def _for_large_models(own: Strategy) -> dict[str, Strategy]:
    """Strategies for models larger than a device, by name; the strategy that ran keeps its options."""
    return {name: own if kind is type(own) else kind() for name, kind in STRATEGIES.items() if kind.for_large_models}


@dataclass(frozen=True)
class _Planner:
    """Plans the memory of a requested run under other strategies and device counts."""

    request: Request
    placement: Placement
    cached_layers: dict[int, LayerMemories] = field(default_factory=dict)
    """Layer memories by the number of samples that a device processes at once."""

    @cached_property
    def workload(self) -> Workload:
        return self.request.resolved()

    @cached_property
    def data(self) -> Data:
        return self.workload.data(self.request.data)

    @cached_property
    def footprint(self) -> Footprint:
        return replace(
            footprint_of(self.workload, self.data),
            room_bytes=memory_limit_bytes(),
            state_copies=OPTIMIZER_COPIES.get(self.optimizer, 0),
            on_gpu=self.on_gpu,
        )

    @property
    def optimizer(self) -> str:
        return self.request.settings.optimizer or self.workload.optimizer

    @property
    def on_gpu(self) -> bool:
        return self.placement.device_kind != "cpu"

    def limit_bytes(self, devices: int) -> int | None:
        """Memory of each device; None for a CPU device without a limit, which may use the whole host's."""
        limit = memory_limit_bytes()
        if not self.on_gpu:
            return limit
        whole = int(torch.cuda.get_device_properties(0).total_memory)
        share = whole // devices if self.placement.device_kind == "slice" else whole
        return share if limit is None else min(limit, share)

    def candidates(self) -> Iterator[tuple[UseStrategy, bool]]:
        """Yield every strategy on increasing device counts until it fits, each with whether it fits."""
        own, present = self.request.strategy, self.placement.devices
        for name, strategy in _for_large_models(own).items():
            for devices in self._device_counts(strategy):
                if strategy is own and devices == present:
                    continue
                memory, limit = self.peak(strategy, devices, self.request.settings.batch), self.limit_bytes(devices)
                if memory and limit:
                    fits = memory.total * (FRAGMENTATION if self.on_gpu else 1) <= limit
                    yield self._remedy(name, memory.total, devices), fits
                    if fits:
                        break

    def peak(self, strategy: Strategy, devices: int, batch: int) -> Memory | None:
        """Planned peak memory of the fullest device; None if the strategy cannot be planned.

        Includes the samples if the run keeps them on the device: with load `device`, or `auto` if they fit.
        """
        streamed = self._peak(strategy, devices, batch, resident=0)
        load, limit = self.request.settings.load, self.limit_bytes(devices)
        if streamed is None or not self.on_gpu or load not in ("auto", "device") or self.data.tensors is None:
            return streamed
        resident = len(self.data) * (self.footprint.input_bytes + self.footprint.target_bytes)
        model_bytes = streamed.weights + streamed.gradients + streamed.optimizer
        if load == "auto" and limit is not None and why_not_resident(resident, limit, model_bytes):
            return streamed
        return self._peak(strategy, devices, batch, resident)

    def _peak(self, strategy: Strategy, devices: int, batch: int, resident: int) -> Memory | None:
        settings = self.request.settings
        run = TrainingRun(
            devices,
            batch,
            self.footprint,
            self.on_gpu,
            self.placement.device_kind == "slice",
            settings.accumulate,
            resident,
        )
        try:
            layers = self._layers(strategy.samples_at_once(run))
            ranks = range(devices if layers else 0)
            memories = [peak_memory(strategy.rank_memory(rank, run, layers), self.optimizer) for rank in ranks]
        except UserError:  # the model cannot be split as the strategy needs
            return None
        return max(memories, key=lambda memory: memory.total, default=None)

    def _layers(self, samples: int) -> LayerMemories:
        if samples not in self.cached_layers:
            device = torch.device("cuda" if self.on_gpu else "cpu")
            precision = self.request.settings.precision
            # cuDNN chooses smaller workspaces when memory is short, so they do not decide what fits.
            with_workspaces = not self.on_gpu
            self.cached_layers[samples] = layers_of(
                self.workload, self.data, samples, device, precision, with_workspaces=with_workspaces
            )
        return self.cached_layers[samples]

    def _device_counts(self, strategy: Strategy) -> list[int]:
        """Device counts to try: the present one, and larger ones where more devices can help."""
        present = self.placement.devices
        if strategy.one_host:
            return [present] if self.placement.hosts == 1 else []
        more = [] if under_torchrun() else [count for count in MORE_DEVICES if count > present]
        return [*([present] if present > 1 else []), *more]

    def _remedy(self, strategy: str, planned_bytes: int, devices: int) -> UseStrategy:
        if devices <= self.placement.devices:
            return UseStrategy(strategy, planned_bytes)
        more_gpus = self.placement.device_kind == "cuda" and devices > torch.cuda.device_count()
        return UseStrategy(strategy, planned_bytes, devices, more_gpus)
