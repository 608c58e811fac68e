"""Steps of a cell, timed on its ranks, and what they bring back as one block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from scalewise.data.data import DataRequest
from scalewise.engines.engine import Place
from scalewise.measuring.block import Block, cut
from scalewise.results.train import BytesPerStep
from scalewise.session.placement import Placement
from scalewise.step.memory import forget_peak_memory
from scalewise.strategies.parameter_server_async import ParameterServerAsync
from scalewise.training.loop import train_on
from scalewise.training.outcome import Outcome
from scalewise.training.request import Request
from scalewise.training.task import Rank, train_task
from scalewise.verbs import asynchronous
from scalewise.verbs.outcomes import bytes_per_step, pace_of, slowest
from scalewise.workloads.resolve import resolve
from scalewise.workloads.workload import Workload


def time_steps(worker: Rank, request: Request) -> Outcome:
    """As `train` does them, but for the accuracy at the end, which nobody asks for."""
    forget_peak_memory(worker.device)
    assert isinstance(request.workload, str)
    request = replace(request, workload=_loaded(request.workload, request.input_shape, request.classes, request.data))
    if isinstance(request.strategy, ParameterServerAsync) and not request.strategy.exact:
        outcome = train_task(worker, request)
    else:
        place = Place(worker.rank, worker.world, worker.device, worker.gpus, worker.shared, worker.timeout_seconds)
        outcome = train_on(place, request, worker.report, evaluate=False)
    outcome.spans, outcome.losses = [], []
    return outcome


@lru_cache(maxsize=2)
def _loaded(workload: str, input_shape: str | None, classes: int | None, asked: DataRequest) -> Workload:
    """A rank that is visited again has its samples at hand."""
    found = resolve(workload, input_shape, classes)
    data = found.data(asked)
    return replace(found, data=lambda _: data)


@dataclass(frozen=True)
class Timed:
    """One visit: the block, and what else was seen."""

    block: Block
    execution: str
    bytes_per_step: BytesPerStep
    peak_memory_bytes: int | None


def timed(request: Request, placement: Placement, outcomes: list[Outcome], wall_seconds: float) -> Timed:
    first, batch = outcomes[0], request.settings.batch
    phases = outcomes[pace_of([outcome.phases for outcome in outcomes])].phases
    if any(outcome.updates for outcome in outcomes):
        rate = asynchronous.samples_per_second(outcomes)
        block = Block(asynchronous.step_seconds(outcomes), epochs=[first.samples / rate] if rate else [])
    else:
        steps, epochs = (slowest([each.all_seconds for each in outcomes]), [each.epoch_seconds for each in outcomes])
        block = cut(steps, slowest(epochs), first.samples, batch, first.execution == "graph")
    return Timed(
        replace(block, phases=phases, wall_seconds=wall_seconds),
        first.execution,
        bytes_per_step(request, placement, outcomes),
        max((outcome.peak_memory_bytes or 0 for outcome in outcomes), default=0) or None,
    )


def timed_epochs(request: Request, placement: Placement, outcomes: list[Outcome], wall_seconds: float) -> list[Timed]:
    """Whole epochs as the study timed them: the first is dropped, each other one is a block of its own."""
    whole = timed(request, placement, outcomes, wall_seconds)
    first, batch = outcomes[0], request.settings.batch
    if any(outcome.updates for outcome in outcomes):
        epochs = asynchronous.epoch_seconds(outcomes, request.settings)[1:]
        seconds = asynchronous.step_seconds(outcomes)
        share = -(-len(seconds) // max(1, len(epochs)))
        parts = [seconds[start : start + share] for start in range(0, len(seconds), share)]
    else:
        epochs = slowest([outcome.epoch_seconds for outcome in outcomes])[1:]
        steps, per_epoch = slowest([outcome.all_seconds for outcome in outcomes]), -(-first.samples // batch)
        kept = per_epoch if per_epoch == 1 or not first.samples % batch else per_epoch - 1
        parts = [steps[start : start + kept] for start in range(per_epoch, len(steps), per_epoch)]
    blocks = [Block(part, phases=whole.block.phases) for part in parts]
    blocks[0] = replace(blocks[0], epochs=epochs, wall_seconds=wall_seconds)
    return [replace(whole, block=block) for block in blocks]
