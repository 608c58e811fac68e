"""Tasks for the tests of engines: ranks import them by name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from scalewise.engines import pipelined
from scalewise.engines.engine import Job, Place
from scalewise.engines.pipeline import build
from scalewise.engines.pipeline_stage import HostStage, TimedStage
from scalewise.engines.registry import ENGINES
from scalewise.servers.client import Client
from scalewise.session.failure import from_exception
from scalewise.session.worker import Worker
from scalewise.step.clock import HostClock, Times
from scalewise.training.outcome import Outcome
from scalewise.training.request import Request
from scalewise.training.task import train_task
from tests.tiny_dropout import Remembered


def worked_on(worker: Worker, request: Request) -> list[str]:
    """What torch's schedule has this rank compute in one step: '0F1' is stage 0, forward, micro-batch 1."""
    workload = request.resolved()
    place = Place(worker.rank, worker.world, worker.device)
    job = Job(workload, workload.data(request.data), request.settings, place, HostClock(Times()))
    engine: Any = build(request.strategy, job)  # type: ignore[arg-type]
    done: list[str] = []

    def noted(call: Callable[..., Any], what: str) -> Callable[..., Any]:
        def wrapped(number: int, *arguments: Any, **options: Any) -> Any:
            done.append(f"{what}{number}")
            return call(number, *arguments, **options)

        return wrapped

    schedule = engine.schedule
    for stage in getattr(schedule, "_stages", None) or [schedule._stage]:
        stage.forward_one_chunk = noted(stage.forward_one_chunk, f"{stage.stage_index}F")
        stage.backward_one_chunk = noted(stage.backward_one_chunk, f"{stage.stage_index}B")
    engine.start_epoch([torch.arange(request.settings.batch)])
    engine.step()
    return done


def train_through_host(worker: Worker, request: Request) -> int:
    """As between slices of a GPU, on any device; how many buffers the messages of all steps went through."""
    made: list[HostStage] = []

    class Noted(HostStage):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    pipelined.TimedStage = pipelined.HostStage = Noted  # type: ignore[attr-defined]
    try:
        train_task(worker, request)
    finally:
        pipelined.TimedStage, pipelined.HostStage = TimedStage, HostStage  # type: ignore[attr-defined]
    return sum(len(stage.staging.buffers) for stage in made)


def failure_of(worker: Worker, request: Request) -> tuple[str, list[str]]:
    """What is said of it, and what torch's schedules log of it."""
    logger = logging.getLogger("torch.distributed.pipelining.schedules")
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        train_task(worker, request)
    except Exception as error:  # whatever the test makes it fail of
        return from_exception(worker.rank, error).sentence, logged
    finally:
        logger.removeHandler(handler)
    return "", logged


def samples_at_a_time(worker: Worker, request: Request) -> int | None:
    """That an exported model takes."""
    workload = request.resolved()
    place = Place(worker.rank, worker.world, worker.device)
    job = Job(workload, workload.data(request.data), request.settings, place, HostClock(Times()))
    engine: Any = ENGINES[request.strategy.name](request.strategy, job)
    samples: int | None = engine.fixed_batch
    return samples


def cut_where(worker: Worker, request: Request) -> list[int]:
    """The sections that end its stages."""
    workload = request.resolved()
    place = Place(worker.rank, worker.world, worker.device)
    job = Job(workload, workload.data(request.data), request.settings, place, HostClock(Times()))
    engine: Any = ENGINES[request.strategy.name](request.strategy, job)
    return [stage.stop for stage in engine.ranges]


def kept_and_learnt(worker: Worker, request: Request) -> tuple[dict[str, Any], dict[str, Any]]:
    """By a part of a cut model after some steps: what its dropouts kept at the last, and its weights."""
    workload = request.resolved()
    data = workload.data(request.data)
    place = Place(worker.rank, worker.world, worker.device)
    job = Job(workload, data, request.settings, place, HostClock(Times()))
    torch.manual_seed(request.settings.seed)
    engine: Any = ENGINES[request.strategy.name](request.strategy, job)
    engine.start_epoch(list(torch.arange(len(data)).split(request.settings.batch)))
    for _ in range(len(data) // request.settings.batch):
        engine.step()
    kept = {name: module.kept.tolist() for name, module in engine.model.named_modules() if hasattr(module, "kept")}
    return kept, {name: parameter.tolist() for name, parameter in engine.model.named_parameters()}


def train_and_note_masks(worker: Worker, request: Request) -> tuple[Outcome, list[list[float]]]:
    """What was dropped, by both layers of the model, before each push of this worker."""
    seen: list[list[float]] = []
    pushed: list[list[float]] = []
    finish_pushes = Client.finish_pushes

    def note(module: nn.Module, _inputs: object, _output: Tensor) -> None:
        if isinstance(module, Remembered):
            seen.append(module.mask.tolist())

    def finish_and_note(client: Client) -> None:
        pushed.append(seen[-2] + seen[-1])
        finish_pushes(client)

    hook = register_module_forward_hook(note)
    Client.finish_pushes = finish_and_note  # type: ignore[method-assign,assignment]
    try:
        return train_task(worker, request), pushed
    finally:
        hook.remove()
        Client.finish_pushes = finish_pushes  # type: ignore[method-assign]
