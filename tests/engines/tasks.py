"""Tasks for the tests of engines; ranks import them by name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from scalewise.engines import pipeline
from scalewise.engines.base import Job, Place
from scalewise.engines.pipeline import HostStage, TimedStage, build
from scalewise.engines.registry import ENGINES
from scalewise.launch.rank_failure import from_exception
from scalewise.launch.worker import Worker
from scalewise.parameter_server.client import Client
from scalewise.runtime.clock import HostClock, Times
from scalewise.training.results import Outcome, Request
from scalewise.training.tasks import train_task
from tests.tiny_dropout import Remembered


def computations_of(worker: Worker, request: Request) -> list[str]:
    """Return what this rank computes in one step of torch's schedule: '0F1' is stage 0, forward, micro-batch 1."""
    workload = request.resolved()
    place = Place(worker.rank, worker.world, worker.device)
    job = Job(workload, workload.data(request.data), request.settings, place, HostClock(Times()))
    engine: Any = build(request.strategy, job)  # type: ignore[arg-type]
    computations: list[str] = []

    def recorded(call: Callable[..., Any], prefix: str) -> Callable[..., Any]:
        def wrapped(number: int, *arguments: Any, **options: Any) -> Any:
            computations.append(f"{prefix}{number}")
            return call(number, *arguments, **options)

        return wrapped

    schedule = engine.schedule
    for stage in getattr(schedule, "_stages", None) or [schedule._stage]:
        stage.forward_one_chunk = recorded(stage.forward_one_chunk, f"{stage.stage_index}F")
        stage.backward_one_chunk = recorded(stage.backward_one_chunk, f"{stage.stage_index}B")
    engine.start_epoch([torch.arange(request.settings.batch)])
    engine.step()
    return computations


def train_through_host(worker: Worker, request: Request) -> int:
    """Train with messages through host memory, as between slices of a GPU; return the number of message buffers."""
    stages: list[HostStage] = []

    class RecordedStage(HostStage):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            stages.append(self)

    pipeline.TimedStage = pipeline.HostStage = RecordedStage  # type: ignore[misc]
    try:
        train_task(worker, request)
    finally:
        pipeline.TimedStage, pipeline.HostStage = TimedStage, HostStage  # type: ignore[misc]
    return sum(len(stage.staging.buffers) for stage in stages)


def failure_of(worker: Worker, request: Request) -> tuple[str, list[str]]:
    """Return the error message of the failing run and what torch's schedules log."""
    logger = logging.getLogger("torch.distributed.pipelining.schedules")
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        train_task(worker, request)
    except Exception as error:  # the test chooses the error
        return from_exception(worker.rank, error).sentence, logged
    finally:
        logger.removeHandler(handler)
    return "", logged


def samples_at_a_time(worker: Worker, request: Request) -> int | None:
    """Return the number of samples that the exported model takes at a time."""
    workload = request.resolved()
    place = Place(worker.rank, worker.world, worker.device)
    job = Job(workload, workload.data(request.data), request.settings, place, HostClock(Times()))
    engine: Any = ENGINES[request.strategy.name](request.strategy, job)
    samples: int | None = engine.fixed_batch
    return samples


def stage_ends(worker: Worker, request: Request) -> list[int]:
    """Return the end of every stage as a section number."""
    workload = request.resolved()
    place = Place(worker.rank, worker.world, worker.device)
    job = Job(workload, workload.data(request.data), request.settings, place, HostClock(Times()))
    engine: Any = ENGINES[request.strategy.name](request.strategy, job)
    return [stage.stop for stage in engine.ranges]


def masks_and_weights(worker: Worker, request: Request) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train a part of a split model; return the masks of its dropouts in the last step, and its weights."""
    workload = request.resolved()
    data = workload.data(request.data)
    place = Place(worker.rank, worker.world, worker.device)
    job = Job(workload, data, request.settings, place, HostClock(Times()))
    torch.manual_seed(request.settings.seed)
    engine: Any = ENGINES[request.strategy.name](request.strategy, job)
    engine.start_epoch(list(torch.arange(len(data)).split(request.settings.batch)))
    for _ in range(len(data) // request.settings.batch):
        engine.step()
    masks = {name: module.kept.tolist() for name, module in engine.model.named_modules() if hasattr(module, "kept")}
    return masks, {name: parameter.tolist() for name, parameter in engine.model.named_parameters()}


def train_and_record_masks(worker: Worker, request: Request) -> tuple[Outcome, list[list[float]]]:
    """Train and return the masks of both dropout layers before every push of this worker."""
    masks: list[list[float]] = []
    pushed: list[list[float]] = []
    finish_pushes = Client.finish_pushes

    def record(module: nn.Module, _inputs: object, _output: Tensor) -> None:
        if isinstance(module, Remembered):
            masks.append(module.mask.tolist())

    def finish_and_record(client: Client) -> None:
        pushed.append(masks[-2] + masks[-1])
        finish_pushes(client)

    hook = register_module_forward_hook(record)
    Client.finish_pushes = finish_and_record  # type: ignore[method-assign,assignment]
    try:
        return train_task(worker, request), pushed
    finally:
        hook.remove()
        Client.finish_pushes = finish_pushes  # type: ignore[method-assign]
