"""Devices timed on the same workload at once, meeting in every step as in training, with nothing to send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

from scalewise.data.data import Data, DataRequest
from scalewise.engines.engine import Engine, Job, Place
from scalewise.engines.single import build
from scalewise.errors import UserError
from scalewise.linking.operations import agreed, synchronize
from scalewise.results.profile import InStep, Profile, StepCost
from scalewise.session.placement import Placement
from scalewise.session.session import Session
from scalewise.session.worker import Worker
from scalewise.step.clock import Clock, Times, make_clock
from scalewise.step.precision import set_precision
from scalewise.step.settings import Settings
from scalewise.step.shards import epoch_order
from scalewise.strategies.single import Single
from scalewise.workloads.resolve import resolve
from scalewise.workloads.workload import Workload

WARM_UP, FEWEST, MOST = 4, 6, 60
SECONDS_PER_BATCH = 0.4


@dataclass(frozen=True)
class Asked:
    """What every device does."""

    workload: str
    input_shape: str | None
    classes: int | None
    data: DataRequest
    settings: Settings


@dataclass(frozen=True)
class Met:
    """One device's steps at one batch, by a clock that all processes of a machine share."""

    arrived: list[float]
    """When its gradients were complete."""
    left: list[float]
    """When all devices' were."""
    phases: dict[str, float]


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
    """A device's profile, and the same batches on so many devices at once; on one that meets nobody, too.

    A device that meets others is told what to do when it has nothing left to do, which takes a host longer than one
    that is told ahead; and siblings slow each other down as this workload makes them, not as any other.

    >>> print(with_others(scalewise.profile("linear"), "linear", [2]))
    """
    if not counts or min(counts) < 2:
        raise UserError(f"--beside is {','.join(map(str, counts)) or 'empty'}; it must be 2 or more, or several such")
    known = alone.document.steps
    settings = Settings(known[0].batch, None, 1, precision=alone.document.precision, load=load)  # type: ignore[arg-type]
    asked = Asked(workload, input_shape, classes, DataRequest(Path(data) if data else None, samples), settings)
    found = []
    with Session(Placement(max(counts), device_kind, slice_percent=slice_percent)) as session:
        for count in sorted({1, *counts}):
            if on_count:
                on_count(count)
            by_rank = session.run(steps_together, asked, count, [step.batch for step in known])[:count]
            steps = (_cost(step, met) for step, met in zip(known, zip(*by_rank, strict=True), strict=True))
            found.append(InStep(devices=count, steps=tuple(steps)))
    return Profile(alone.document.model_copy(update={"in_step": tuple(found)}), alone.note)


def steps_together(worker: Worker, asked: Asked, devices: int, batches: Sequence[int]) -> list[Met]:
    """On the first so many ranks; nothing on the others."""
    group = dist.new_group(list(range(devices)), backend="gloo")
    if worker.rank >= devices:
        return []
    assert isinstance(group, dist.ProcessGroup)
    workload = resolve(asked.workload, asked.input_shape, asked.classes)
    data = workload.data(asked.data)
    set_precision(asked.settings.precision, worker.device)
    return [_steps_at(batch, worker, workload, data, asked.settings, group) for batch in batches]


def _steps_at(
    batch: int, worker: Worker, workload: Workload, data: Data, settings: Settings, group: dist.ProcessGroup
) -> Met:
    times = Times(warm_up=2 * WARM_UP)
    clock = MeetingClock(make_clock(worker.device, times), worker.device, group)
    settings = replace(settings, batch=batch, execution="eager")
    engine = build(Single(), Job(workload, data, settings, Place(0, 1, worker.device), clock))
    _take(engine, data, batch, WARM_UP)
    started = perf_counter()
    _take(engine, data, batch, WARM_UP)
    seconds = agreed((perf_counter() - started) / WARM_UP, worker, group)
    _take(engine, data, batch, min(MOST, max(FEWEST, int(SECONDS_PER_BATCH / seconds))))
    clock.close()
    clock.collect()
    engine.close()
    return Met(clock.arrived[times.warm_up :], clock.left[times.warm_up :], times.phases)


def _take(engine: Engine, data: Data, batch: int, steps: int) -> None:
    """Full batches, of as many epochs as that needs."""
    full = len(data) // batch
    epochs = (epoch_order(0, epoch, len(data)).split(batch)[:full] for epoch in range(-(-steps // full)))
    engine.start_epoch(list(chain.from_iterable(epochs))[:steps])
    for _ in range(steps):
        engine.step()


class MeetingClock:
    """Another clock, on which all devices meet behind backward, where training hands over gradients."""

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


def _cost(alone: StepCost, ranks: Sequence[Met]) -> StepCost:
    """From the moment that all have met to the last one's next arrival, shared out as the first one's phases are."""
    left = [max(moments) for moments in zip(*(rank.left for rank in ranks), strict=True)]
    arrived = [max(moments) for moments in zip(*(rank.arrived for rank in ranks), strict=True)]
    seconds = median(end - start for start, end in zip(left, arrived[1:], strict=False))
    phases = {phase: part for phase, part in ranks[0].phases.items() if phase != "idle"}
    scale = seconds / sum(phases.values())
    return alone.model_copy(
        update={
            "forward": (phases["forward"] + phases["loss"]) * scale,
            "backward": phases["backward"] * scale,
            "update": phases["update"] * scale,
            "load": phases["load"] * scale,
            "step_seconds": seconds,
        }
    )
