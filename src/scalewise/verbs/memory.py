"""What a run will need of each device's memory, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from scalewise.data.data import DataRequest
from scalewise.prediction.held import Layers, Run
from scalewise.prediction.holdings import cuts_by, held_by, samples_at_a_time
from scalewise.prediction.memory import OPTIMIZER_COPIES, Memory, most_by_layer, peak_memory
from scalewise.session.placement import Placement
from scalewise.session.session import Session
from scalewise.session.worker import Worker
from scalewise.step.precision import set_precision
from scalewise.step.room import memory_limit_bytes
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.strategy import Strategy
from scalewise.workloads.footprint import footprint_of
from scalewise.workloads.gpu_memory import Rooms
from scalewise.workloads.layer_memory import layers_of
from scalewise.workloads.resolve import resolve


def planned_memory(
    workload: str, strategy: str, devices: int, batch: int, device_kind: str = "cpu", samples: int | None = None
) -> list[Memory]:
    """Of every rank, at its peak; samples that live on a GPU included. Empty if the model needs real numbers."""
    chosen, found = strategy_of(strategy), resolve(workload)
    data = found.data(DataRequest(samples=samples))
    device = torch.device("cpu" if device_kind == "cpu" else "cuda")
    set_precision("fp32", device)  # cuDNN is asked as the run will ask it: where it may round, it takes other memory
    footprint = replace(
        footprint_of(found, data),
        room_bytes=memory_limit_bytes(),
        state_copies=OPTIMIZER_COPIES.get(found.optimizer, 0),
        on_gpu=device_kind != "cpu",
    )
    resident = 0 if device_kind == "cpu" else len(data) * (footprint.input_bytes + footprint.target_bytes)
    run = Run(devices, batch, footprint, device_kind != "cpu", device_kind == "slice", resident_bytes=resident)
    traced = partial(layers_of, found, data, samples_at_a_time(chosen, run), device, cuts=cuts_by(chosen, run))
    limit = memory_limit_bytes()
    planned = _peaks(chosen, run, traced(), found.optimizer)
    if limit is None or device.type == "cpu" or all(memory.total <= limit for memory in planned):
        return planned
    rooms = _rooms(chosen, run, traced(least=True), found.optimizer, limit)
    return _peaks(chosen, run, traced(rooms=rooms), found.optimizer)


def _peaks(strategy: Strategy, run: Run, layers: Layers, optimizer: str) -> list[Memory]:
    ranks = range(run.devices if layers else 0)
    return [peak_memory(held_by(strategy, rank, run, layers), optimizer) for rank in ranks]


def _rooms(strategy: Strategy, run: Run, layers: Layers, optimizer: str, limit: int) -> Rooms:
    """What the limit leaves cuDNN in each layer, beside all that must be there on the fullest rank that has it."""
    rooms: dict[tuple[str, str], int] = {}
    for rank in range(run.devices):
        for where, taken in most_by_layer(held_by(strategy, rank, run, layers), optimizer).items():
            rooms[where] = min(rooms.get(where, limit), max(0, limit - taken))
    return rooms


@dataclass(frozen=True)
class Asked:
    """A run whose memory is to be planned."""

    workload: str
    strategy: str
    devices: int
    batch: int
    samples: int | None = None


def planned_on(device_kind: str, asked: Sequence[Asked], slice_percent: int | None = None) -> list[list[Memory]]:
    """The same of many runs; of slices on one of them: with fewer multiprocessors cuDNN takes other memory."""
    if device_kind != "slice":
        return _plan(None, device_kind, asked)
    with Session(Placement(1, device_kind, slice_percent=slice_percent)) as session:
        found: list[list[Memory]]
        [found] = session.run(_plan, device_kind, asked)
    return found


def _plan(_: Worker | None, device_kind: str, asked: Sequence[Asked]) -> list[list[Memory]]:
    return [
        planned_memory(each.workload, each.strategy, each.devices, each.batch, device_kind, each.samples)
        for each in asked
    ]
