"""Time several devices that run the same workload at the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

from scalewise.core.errors import UserError
from scalewise.core.timeline import shared_out
from scalewise.core.training_options import Settings
from scalewise.data.dataset import Data, DataRequest
from scalewise.engines.base import Engine, Job, Place
from scalewise.engines.single import build
from scalewise.formats.profile import InStep, Profile, StepCost
from scalewise.launch.placement import Placement
from scalewise.launch.session import Session
from scalewise.launch.worker import Worker
from scalewise.models.resolve import resolve
from scalewise.models.workload import Workload
from scalewise.probe.link_benchmarks import ClockReading, max_over_ranks, read_clock, synchronize, time_on_first
from scalewise.runtime.clock import Clock, Times, make_clock
from scalewise.runtime.feed import epoch_order
from scalewise.runtime.optimizers import set_precision
from scalewise.strategies.registry import REFERENCE

WARM_UP, FEWEST_STEPS, MOST_STEPS = 4, 6, 60
SECONDS_PER_BATCH = 0.4


@dataclass(frozen=True)
class SiblingTask:
    """Workload and settings that every device runs."""

    workload: str
    input_shape: str | None
    classes: int | None
    data: DataRequest
    settings: Settings


@dataclass(frozen=True)
class BarrierTimes:
    """Times of one device's steps at one batch, by the clock of its machine."""

    arrived: list[float]
    """When the gradients of this device were complete, in every step."""
    left: list[float]
    """When the gradients of all devices were complete, in every step."""
    phases: dict[str, float]

    def on_clock_of_first(self, before: ClockReading, after: ClockReading) -> BarrierTimes:
        """Convert the times of a rank on another host to the clock of rank 0."""
        return replace(
            self,
            arrived=[time_on_first(time, before, after) for time in self.arrived],
            left=[time_on_first(time, before, after) for time in self.left],
        )


def with_others(
    alone: Profile,
    workload: str,
    counts: Sequence[int],
    *,
    device_kind: str = "cpu",
    slice_percent: int | None = None,
    load: str = "auto",
    data: Path | str | None = None,
    samples: int | None = None,
    input_shape: str | None = None,
    classes: int | None = None,
    on_count: Callable[[int], None] | None = None,
) -> Profile:
    """Add to a profile the same batches on several devices at once, for each of `counts` and for one device.

    All devices wait for each other after backward, as in training. This shows how much devices of this machine slow
    each other down with this workload, and what launching work costs after such a wait.

    >>> print(with_others(scalewise.profile("linear"), "linear", [2]))
    """
    if not counts or min(counts) < 2:
        given = ",".join(map(str, counts)) or "empty"
        raise UserError(f"--beside is {given}; every device count must be 2 or more, as in --beside 2,4")
    alone_steps = alone.document.steps
    settings = Settings(alone_steps[0].batch, None, 1, precision=alone.document.precision, load=load)  # type: ignore[arg-type]
    task = SiblingTask(workload, input_shape, classes, DataRequest(Path(data) if data else None, samples), settings)
    in_step = []
    with Session(Placement(max(counts), device_kind, slice_percent=slice_percent)) as session:
        for count in sorted({1, *counts}):
            if on_count:
                on_count(count)
            clocks = [session.run(read_clock)] if session.placement.ranks_on else []
            by_rank = session.run(steps_together, task, count, [step.batch for step in alone_steps])[:count]
            if clocks:
                clocks.append(session.run(read_clock))
                by_rank = [
                    [times.on_clock_of_first(*readings) for times in rank]
                    for rank, readings in zip(by_rank, zip(*clocks, strict=True), strict=False)
                ]
            steps = (_cost(step, ranks) for step, ranks in zip(alone_steps, zip(*by_rank, strict=True), strict=True))
            hosts = len({session.placement.host_of(rank) for rank in range(count)})
            in_step.append(InStep(devices=count, steps=tuple(steps), hosts=hosts))
    return Profile(alone.document.model_copy(update={"in_step": tuple(in_step)}), alone.note)


def steps_together(worker: Worker, task: SiblingTask, devices: int, batches: Sequence[int]) -> list[BarrierTimes]:
    """Time every batch on the first `devices` ranks together; empty on the other ranks."""
    group = dist.new_group(list(range(devices)), backend="gloo")
    if worker.rank >= devices:
        return []
    assert isinstance(group, dist.ProcessGroup)
    workload = resolve(task.workload, task.input_shape, task.classes)
    data = workload.data(task.data)
    set_precision(task.settings.precision, worker.device)
    return [_steps_at(batch, worker, workload, data, task.settings, group) for batch in batches]


def _steps_at(
    batch: int, worker: Worker, workload: Workload, data: Data, settings: Settings, group: dist.ProcessGroup
) -> BarrierTimes:
    times = Times(warm_up=2 * WARM_UP)
    clock = BarrierClock(make_clock(worker.device, times), worker.device, group)
    settings = replace(settings, batch=batch, execution="eager")
    engine = build(REFERENCE, Job(workload, data, settings, Place(0, 1, worker.device), clock))
    _run_steps(engine, data, batch, WARM_UP)
    started = perf_counter()
    _run_steps(engine, data, batch, WARM_UP)
    seconds = max_over_ranks((perf_counter() - started) / WARM_UP, worker, group)
    _run_steps(engine, data, batch, min(MOST_STEPS, max(FEWEST_STEPS, int(SECONDS_PER_BATCH / seconds))))
    clock.close()
    clock.collect()
    engine.close()
    return BarrierTimes(clock.arrived[times.warm_up :], clock.left[times.warm_up :], times.phases)


def _run_steps(engine: Engine, data: Data, batch: int, steps: int) -> None:
    """Run steps on full batches only, over as many epochs as needed."""
    per_epoch = len(data) // batch
    epochs = (epoch_order(0, epoch, len(data)).split(batch)[:per_epoch] for epoch in range(-(-steps // per_epoch)))
    engine.start_epoch(list(chain.from_iterable(epochs))[:steps])
    for _ in range(steps):
        engine.step()


class BarrierClock:
    """Clock with a barrier of all devices after backward, where training all-reduces gradients."""

    def __init__(self, inner: Clock, device: torch.device, group: dist.ProcessGroup) -> None:
        self._inner, self._device, self._group = inner, device, group
        self.arrived: list[float] = []
        self.left: list[float] = []
        self.start, self.note, self.close = inner.start, inner.note, inner.close
        self.forget, self.collect = inner.forget, inner.collect

    def lap(self, phase: str, *, noted: bool = False) -> None:
        self._inner.lap(phase, noted=noted)
        if phase == "backward":
            synchronize(self._device)
            self.arrived.append(perf_counter())
            dist.barrier(self._group)
            self.left.append(perf_counter())
            self._inner.lap("idle")


def _cost(alone: StepCost, ranks: Sequence[BarrierTimes]) -> StepCost:
    """Cost of a step with siblings.

    A step lasts from the end of one barrier to the last device's arrival at the next. Its seconds are divided in
    proportion to the phases of the first device.
    """
    left = [max(moments) for moments in zip(*(rank.left for rank in ranks), strict=True)]
    arrived = [max(moments) for moments in zip(*(rank.arrived for rank in ranks), strict=True)]
    seconds = median(end - start for start, end in zip(left, arrived[1:], strict=False))
    phases = {phase: part for phase, part in ranks[0].phases.items() if phase != "idle"}
    parts = defaultdict(float, shared_out(phases, seconds))
    return alone.model_copy(
        update={
            "forward": parts["forward"] + parts["loss"],
            "backward": parts["backward"],
            "update": parts["update"],
            "load": parts["load"],
            "step_seconds": seconds,
        }
    )
