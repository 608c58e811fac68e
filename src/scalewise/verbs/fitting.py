"""What would fit where a run ran out of memory: by the plan, strategy by strategy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from scalewise.data.data import Data
from scalewise.errors import UserError
from scalewise.plan import Footprint
from scalewise.prediction.held import Layers, Run
from scalewise.prediction.holdings import held_by, samples_at_a_time
from scalewise.prediction.memory import OPTIMIZER_COPIES, Memory, peak_memory
from scalewise.session.failure import FOR_LARGE_MODELS, WEIGHTS_DO_NOT_FIT, larger_models, smaller_batch
from scalewise.session.placement import Placement
from scalewise.session.torchrun import under_torchrun
from scalewise.step.feed import why_not_resident
from scalewise.step.room import memory_limit_bytes
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.strategy import Strategy
from scalewise.training.request import Request
from scalewise.workloads.footprint import footprint_of
from scalewise.workloads.layer_memory import layers_of
from scalewise.workloads.workload import Workload

FRAGMENTS = 1.1
"""Times what is in use a GPU's allocator may have reserved, which is what a limit is about."""
MORE_DEVICES = (2, 4, 8)
"""Tried where a model is spread over too few."""


@dataclass(frozen=True)
class Candidate:
    """A strategy on so many devices, and what it is planned to take of the fullest one."""

    strategy: str
    devices: int
    bytes: int
    fits: bool
    where: str = ""
    """What to say of the devices, if they are not those of the run."""


def advice_for(request: Request, placement: Placement) -> str | None:
    """What to change; None where nobody limits the devices, or nothing can be planned, or the plan says it fits."""
    planner = _Planner(request, placement)
    room = planner.room_bytes(placement.devices)
    if room is None:
        return None
    alone = planner.peak(request.strategy, placement.devices, batch=1)
    if alone is None or (alone.total <= room and request.settings.batch == 1):
        return None
    return _sentence(request.strategy.name, alone, room, list(planner.candidates()))


def _sentence(running: str, alone: Memory, room: int, tried: list[Candidate]) -> str:
    """`alone`: what the strategy that ran takes for a batch of one."""
    fitting = {each.strategy: each for each in tried if each.fits}
    named = [name for name in FOR_LARGE_MODELS if name in fitting]
    figures = [(f"{name} " if len(named) > 1 else "") + _planned(fitting[name]) for name in named]
    larger = f"{larger_models(named)} (planned: {', '.join(figures)})" if named else ""
    if alone.total <= room:
        return f"{smaller_batch(running)} needs less" + (f", and {larger}" if larger else "")
    too_large = WEIGHTS_DO_NOT_FIT if alone.weights > room else f"a batch of one would take {_GB(alone.total)} too"
    if larger:
        return f"{too_large}; {larger}"
    least = min(tried, key=lambda each: each.bytes, default=None)
    if least is None:
        return f"{too_large}, and no other strategy can be planned for this model"
    return (
        f"{too_large}, and no strategy is planned to fit {_GB(room)}: {least.strategy} needs least, {_planned(least)}"
    )


def _planned(candidate: Candidate) -> str:
    return f"{_GB(candidate.bytes)}{candidate.where}"


def _GB(count: int) -> str:
    return f"{count / 1e9:.3g} GB"


@dataclass(frozen=True)
class _Planner:
    """Of the run that was asked for, as other strategies would do it."""

    request: Request
    placement: Placement
    known: dict[int, Layers] = field(default_factory=dict)
    """By the samples that a device works on at a time."""

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

    def room_bytes(self, devices: int) -> int | None:
        """Of each device; None for a CPU device without a limit, which has what the host has."""
        limit = memory_limit_bytes()
        if not self.on_gpu:
            return limit
        whole = int(torch.cuda.get_device_properties(0).total_memory)
        share = whole // devices if self.placement.device_kind == "slice" else whole
        return share if limit is None else min(limit, share)

    def candidates(self) -> Iterator[Candidate]:
        """Each strategy on more and more devices, until it fits."""
        own, present = self.request.strategy, self.placement.devices
        for name in FOR_LARGE_MODELS:
            strategy = own if own.name == name else strategy_of(name)
            for devices in self._device_counts(name):
                if name == own.name and devices == present:
                    continue
                memory, room = self.peak(strategy, devices, self.request.settings.batch), self.room_bytes(devices)
                if memory and room:
                    fits = memory.total * (FRAGMENTS if self.on_gpu else 1) <= room
                    yield Candidate(name, devices, memory.total, fits, self._where(devices))
                    if fits:
                        break

    def peak(self, strategy: Strategy, devices: int, batch: int) -> Memory | None:
        """On the fullest device; None if it cannot be planned. Samples live there too if they are to, or can."""
        alone = self._peak(strategy, devices, batch, resident=0)
        load, room = self.request.settings.load, self.room_bytes(devices)
        if alone is None or not self.on_gpu or load not in ("auto", "device") or self.data.tensors is None:
            return alone
        resident = len(self.data) * (self.footprint.input_bytes + self.footprint.target_bytes)
        kept = alone.weights + alone.gradients + alone.optimizer
        if load == "auto" and room is not None and why_not_resident(resident, room, kept):
            return alone
        return self._peak(strategy, devices, batch, resident)

    def _peak(self, strategy: Strategy, devices: int, batch: int, resident: int) -> Memory | None:
        settings = self.request.settings
        run = Run(
            devices,
            batch,
            self.footprint,
            self.on_gpu,
            self.placement.device_kind == "slice",
            settings.accumulate,
            resident,
        )
        try:
            layers = self._layers(samples_at_a_time(strategy, run))
            ranks = range(devices if layers else 0)
            found = [peak_memory(held_by(strategy, rank, run, layers), self.optimizer) for rank in ranks]
        except UserError:  # a model that cannot be cut so
            return None
        return max(found, key=lambda memory: memory.total, default=None)

    def _layers(self, samples: int) -> Layers:
        if samples not in self.known:
            device = torch.device("cuda" if self.on_gpu else "cpu")
            precision = self.request.settings.precision
            self.known[samples] = layers_of(self.workload, self.data, samples, device, precision, least=True)
        return self.known[samples]

    def _device_counts(self, name: str) -> list[int]:
        """As many as there are, and more where that helps and is possible."""
        present = self.placement.devices
        if name == "central-storage":
            return [present] if self.placement.hosts == 1 else []
        more = [] if under_torchrun() else [count for count in MORE_DEVICES if count > present]
        return [*([present] if present > 1 else []), *more]

    def _where(self, devices: int) -> str:
        if devices <= self.placement.devices:
            return ""
        bought = self.placement.device_kind == "cuda" and devices > torch.cuda.device_count()
        return f" on {devices} such GPUs" if bought else f" with --devices {devices}"
