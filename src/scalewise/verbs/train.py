"""`scalewise train`: one workload, one strategy, one run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from scalewise.atomic import check_writable
from scalewise.data.data import DataRequest
from scalewise.errors import RunFailed, UserError
from scalewise.phases import shared_out
from scalewise.results.statistics import interval_of
from scalewise.results.train import TrainResult
from scalewise.servers.server import Served
from scalewise.session.failure import RankFailed
from scalewise.session.placement import Placement
from scalewise.session.served import ServedSession
from scalewise.session.torchrun import under_torchrun
from scalewise.step.settings import Execution, Precision, Settings
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.strategy import batch_shares, options_of, servers_of
from scalewise.training.outcome import Outcome, Report
from scalewise.training.request import Request
from scalewise.training.task import train_task
from scalewise.verbs import asynchronous
from scalewise.verbs.auto import AUTO, choose, most_devices
from scalewise.verbs.fitting import advice_for
from scalewise.verbs.opening import open_session
from scalewise.verbs.outcomes import (
    bytes_per_step,
    curve_of,
    memory_of,
    notes_on,
    pace_of,
    samples_per_second,
    slowest,
    spread_text,
    timeline_of,
)
from scalewise.workloads.workload import Workload

DEFAULT_BATCH = 20


def train(
    workload: str | Workload,
    *,
    strategy: str = "single",
    devices: int = 1,
    device_kind: str = "auto",
    hosts: int = 1,
    link: str | None = None,
    slow: Mapping[int, float] | None = None,
    slice_percent: int | None = None,
    cores_per_device: int = 1,
    timeout_seconds: float = 60.0,
    batch: int | None = None,
    batch_per_device: int | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    accumulate: int = 1,
    seed: int = 0,
    precision: Precision = "fp32",
    execution: Execution = "auto",
    load: str = "auto",
    data: Path | str | None = None,
    samples: int | None = None,
    input_shape: str | None = None,
    classes: int | None = None,
    checkpoint: Path | str | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    trace: Path | str | None = None,
    on_report: Callable[[Report], None] | None = None,
    on_choosing: Callable[[str], None] | None = None,
) -> TrainResult:
    """Train and say where the time went. `batch` is global, over all devices.

    The strategy 'auto' is the best exact one that `advise` finds for up to so many devices (1: for all there are).

    >>> print(scalewise.train("linear", batch=20, epochs=2))
    """
    if epochs is not None and steps is not None:
        raise UserError(f"--epochs {epochs} and --steps {steps} exclude each other; give one")
    devices = devices_asked(devices)
    why: list[str] = []
    if strategy == AUTO:
        asked = Placement(devices, device_kind, hosts, link, slice_percent=slice_percent)
        asked = replace(asked, devices=most_devices(asked) if isinstance(workload, str) else 1)
        batch, batch_per_device = global_batch(batch, batch_per_device, asked.devices), None
        auto = choose(
            workload,
            asked,
            batch,
            precision=precision,
            load=load,
            data=data,
            input_shape=input_shape,
            classes=classes,
            on_progress=on_choosing,
        )
        strategy, devices, why = auto.strategy, auto.devices, [auto.why]
        hosts, link = (hosts, link) if devices > 1 else (1, None)
    chosen = strategy_of(strategy)
    settings = Settings(
        batch=global_batch(batch, batch_per_device, batch_shares(chosen, devices)),
        epochs=1 if epochs is None and steps is None else epochs,
        steps=steps,
        optimizer=optimizer,
        learning_rate=learning_rate,
        accumulate=accumulate,
        seed=seed,
        precision=precision,
        execution=execution,
        load=load,
        checkpoint=Path(checkpoint) if checkpoint else None,
        checkpoint_every=checkpoint_every,
        resume=resume,
        traced=trace is not None,
    )
    request = Request(
        workload, chosen, settings, DataRequest(Path(data) if data else None, samples, seed), input_shape, classes
    )
    for path in (trace, checkpoint):
        if path:
            check_writable(Path(path))
    placement = Placement(
        devices,
        device_kind,
        hosts,
        link,
        slow or {},
        slice_percent,
        cores_per_device,
        timeout_seconds,
        servers_of(chosen),
    )
    run = _run(request, placement, on_report)
    result = _result(request, run)
    result = replace(result, notes=[*why, *result.notes])
    if trace and result.timeline:
        result.timeline.write_chrome_trace(Path(trace))
    if run.outcomes[0].interrupted:
        raise RunFailed(_interrupted(settings, run.outcomes[0]))
    return result


def devices_asked(devices: int) -> int:
    """Under torchrun the number of ranks is already decided."""
    return int(os.environ["WORLD_SIZE"]) if devices == 1 and under_torchrun() else devices


def global_batch(batch: int | None, batch_per_device: int | None, shares: int) -> int:
    """The two meanings of 'batch', never both."""
    if batch is not None and batch_per_device is not None:
        raise UserError(f"--batch {batch} and --batch-per-device {batch_per_device} exclude each other; give one")
    if batch_per_device is not None:
        if batch_per_device < 1:
            raise UserError(f"--batch-per-device is {batch_per_device}; it must be at least 1")
        return batch_per_device * shares
    return DEFAULT_BATCH if batch is None else batch


@dataclass(frozen=True)
class _Finished:
    """A run that is over: where it ran, and what its processes brought back."""

    placement: Placement
    outcomes: list[Outcome]
    served: list[Served]
    lost: list[str]


def _run(request: Request, placement: Placement, on_report: Callable[[Report], None] | None) -> _Finished:
    told = _furthest(on_report) if on_report else None
    session = open_session(request.strategy, placement)
    try:
        with session:
            outcomes = session.run(train_task, request, on_report=told)
            served, lost = (session.served, session.lost) if isinstance(session, ServedSession) else ([], [])
            return _Finished(session.placement, outcomes, served, lost)
    except RankFailed as error:
        if error.kind == "oom" and (advice := advice_for(request, session.placement)):
            raise RankFailed(error.failure.advising(advice)) from error
        raise
    except KeyboardInterrupt:
        saved = request.settings.checkpoint
        if saved and saved.exists():
            raise RunFailed(f"interrupted; go on from the last checkpoint with --checkpoint {saved} --resume") from None
        raise


def _furthest(on_report: Callable[[Report], None]) -> Callable[[int, Report], None]:
    """Of all that ranks tell, what is news."""
    steps_done = 0

    def told(rank: int, report: Report) -> None:
        nonlocal steps_done
        if report.steps_done > steps_done or (rank == 0 and report.steps_done == steps_done):
            steps_done = report.steps_done
            on_report(report)

    return told


def _result(request: Request, run: _Finished) -> TrainResult:
    outcomes, placement, settings = run.outcomes, run.placement, request.settings
    first = outcomes[0]
    alone = any(outcome.updates for outcome in outcomes)  # one that came late may have found nothing left to do
    epochs = (
        asynchronous.epoch_seconds(outcomes, settings) if alone else slowest([each.epoch_seconds for each in outcomes])
    )
    seconds = asynchronous.step_seconds(outcomes) if alone else slowest([each.step_seconds for each in outcomes])
    step = interval_of(seconds)
    pace = pace_of([outcome.phases for outcome in outcomes], step.median if alone else None)
    return TrainResult(
        workload=request.workload if isinstance(request.workload, str) else request.workload.name,
        data=first.source,
        strategy=request.strategy.name,
        options=options_of(request.strategy),
        devices=placement.devices,
        device_kind=placement.device_kind,
        hosts=placement.hosts,
        link=placement.link,
        batch=settings.batch,
        batch_per_device=-(-settings.batch // batch_shares(request.strategy, placement.devices)),
        precision=settings.precision,
        steps=run.served[0].applied if alone else first.steps,
        epochs=len(epochs),
        epoch_seconds=epochs,
        step_seconds=step,
        samples_per_second=(
            asynchronous.samples_per_second(outcomes) if alone else samples_per_second(outcomes, settings.batch)
        ),
        loss=asynchronous.last_loss(outcomes, placement.devices) if alone else first.loss,
        accuracy=next((outcome.accuracy for outcome in outcomes if outcome.accuracy is not None), None),
        phases=shared_out(outcomes[pace].phases, step.median),
        phases_rank=outcomes[pace].worker if alone else pace,
        bytes_per_step=bytes_per_step(request, placement, outcomes),
        parameters=first.parameters,
        execution=first.execution,
        load=next((outcome.load for outcome in outcomes if outcome.load), ""),
        peak_memory_bytes=max((outcome.peak_memory_bytes or 0 for outcome in outcomes), default=0) or None,
        memory=memory_of(request, placement, outcomes),
        staleness=asynchronous.staleness(run.served) if alone else None,
        updates=asynchronous.updates(run.served, outcomes, placement.devices) if alone else None,
        spread=spread_text(request.strategy, first.footprint.microbatches if first.footprint else None),
        notes=notes_on(request, placement, outcomes) + run.lost,
        checkpoint=settings.checkpoint,
        timeline=timeline_of(outcomes),
        curve=asynchronous.curve(outcomes) if alone else curve_of(first, settings.batch),
    )


def _interrupted(settings: Settings, outcome: Outcome) -> str:
    if settings.checkpoint:
        return f"stopped after {outcome.steps} steps; go on with --checkpoint {settings.checkpoint} --resume"
    return f"stopped after {outcome.steps} steps; with --checkpoint FILE a stopped run can be resumed"
