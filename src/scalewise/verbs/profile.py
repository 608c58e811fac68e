"""`scalewise profile`: what one device here costs on a workload, batch by batch."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy
import torch

from scalewise import __version__
from scalewise.data.data import DataRequest
from scalewise.engines.engine import Place
from scalewise.errors import UserError
from scalewise.results.profile import LayerCost, Profile, ProfileDocument, StepCost
from scalewise.results.statistics import interval_of
from scalewise.session.hardware import device_name
from scalewise.session.inprocess import InProcess, LocalWorker
from scalewise.session.placement import Placement
from scalewise.step.settings import Execution, Precision, Settings
from scalewise.strategies.single import Single
from scalewise.training.loop import Outcome, train_on
from scalewise.training.request import Request
from scalewise.verbs.describe import describe
from scalewise.workloads.workload import Workload

FIRST_STEPS, FEWEST_STEPS, MOST_STEPS = 6, 12, 400
SECONDS_PER_BATCH = 2.0


def profile(
    workload: str | Workload,
    *,
    batch: Sequence[int] = (10, 20, 50, 100),
    device_kind: str = "auto",
    precision: Precision = "fp32",
    execution: Execution = "auto",
    load: str = "auto",
    data: Path | str | None = None,
    samples: int | None = None,
    input_shape: str | None = None,
    classes: int | None = None,
    on_batch: Callable[[StepCost], None] | None = None,
) -> Profile:
    """Time load, forward, backward and update on one device at each batch.

    >>> print(scalewise.profile("linear", batch=[10, 20]))
    """
    if not batch:
        raise UserError("--batch is empty; give one or more sizes, as in --batch 10,20,50")

    def request(size: int, steps: int) -> Request:
        settings = Settings(size, None, steps, precision=precision, execution=execution, load=load)
        return Request(
            workload, Single(), settings, DataRequest(Path(data) if data else None, samples), input_shape, classes
        )

    described = describe(request(1, 1).resolved())
    costs: list[StepCost] = []
    outcome: Outcome | None = None
    with InProcess(Placement(1, device_kind)) as session:
        for size in batch:
            [outcome] = session.run(_time, request, size)
            costs.append(_cost(size, outcome))
            if on_batch:
                on_batch(costs[-1])
    assert outcome is not None
    return Profile(
        ProfileDocument(
            workload=described.workload,
            device=device_name(session.device),
            execution=outcome.execution,
            samples_per_epoch=outcome.samples,
            parameter_bytes=described.parameter_bytes,
            input_bytes=described.input_bytes,
            layers=tuple(
                LayerCost(
                    name=layer.name,
                    parameter_bytes=layer.parameter_bytes,
                    activation_bytes=layer.activation_bytes,
                    flops=layer.flops,
                )
                for layer in described.layers
            ),
            steps=tuple(costs),
            precision=precision,
            data=outcome.source,
            versions={
                "scalewise": __version__,
                "torch": torch.__version__,
                "numpy": numpy.__version__,
                "python": platform.python_version(),
            },
        )
    )


def _time(worker: LocalWorker, request: Callable[[int, int], Request], size: int) -> Outcome:
    """A few steps to see how long one takes, then as many as the time allows."""
    place = Place(worker.rank, worker.world, worker.device)
    first = train_on(place, request(size, FIRST_STEPS), worker.report, evaluate=False)
    fitting = int(SECONDS_PER_BATCH / max(interval_of(first.step_seconds).median, 1e-6))
    return train_on(place, request(size, min(max(fitting, FEWEST_STEPS), MOST_STEPS)), worker.report, evaluate=False)


def _cost(size: int, outcome: Outcome) -> StepCost:
    """The median step, shared out as the phases were."""
    step = interval_of(outcome.step_seconds).median
    scale = step / sum(outcome.phases.values())
    seconds = {phase: seconds * scale for phase, seconds in outcome.phases.items()}
    return StepCost(
        batch=size,
        forward=seconds["forward"] + seconds["loss"],
        backward=seconds["backward"],
        update=seconds["update"],
        load=seconds["load"],
        step_seconds=step,
        peak_memory_bytes=outcome.peak_memory_bytes,
    )
