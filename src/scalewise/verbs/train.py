"""`scalewise train`: one workload, one strategy, one run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scalewise.data.data import DataRequest
from scalewise.errors import RunFailed, UserError
from scalewise.results.statistics import interval_of
from scalewise.results.train import BytesPerStep, TrainResult
from scalewise.session.inprocess import InProcess
from scalewise.session.placement import Placement
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.strategy import options_of
from scalewise.step.settings import Execution, Precision, Settings
from scalewise.timeline import Timeline
from scalewise.training.loop import Outcome, Report
from scalewise.training.request import Request
from scalewise.training.task import train_task
from scalewise.workloads.workload import Workload

DEFAULT_BATCH = 20


def train(
    workload: str | Workload,
    *,
    strategy: str = "single",
    devices: int = 1,
    device_kind: str = "auto",
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
) -> TrainResult:
    """Train and say where the time went. `batch` is global, over all devices.

    >>> print(scalewise.train("linear", batch=20, epochs=2))
    """
    chosen = strategy_of(strategy)
    if epochs is not None and steps is not None:
        raise UserError(f"--epochs {epochs} and --steps {steps} exclude each other; give one")
    settings = Settings(
        batch=global_batch(batch, batch_per_device, devices),
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
    )
    request = Request(
        workload, chosen, settings, DataRequest(Path(data) if data else None, samples, seed), input_shape, classes
    )
    if trace:
        _check_writable(Path(trace))
    placement = Placement(devices, device_kind)
    placement, outcomes = _run(request, placement, on_report)
    result = _result(request, placement, outcomes)
    if trace and result.timeline:
        result.timeline.write_chrome_trace(Path(trace))
    if outcomes[0].interrupted:
        raise RunFailed(_interrupted(settings, outcomes[0]))
    return result


def global_batch(batch: int | None, batch_per_device: int | None, devices: int) -> int:
    """The two meanings of 'batch', never both."""
    if batch is not None and batch_per_device is not None:
        raise UserError(f"--batch {batch} and --batch-per-device {batch_per_device} exclude each other; give one")
    if batch_per_device is not None:
        return batch_per_device * devices
    return DEFAULT_BATCH if batch is None else batch


def _run(
    request: Request, placement: Placement, on_report: Callable[[Report], None] | None
) -> tuple[Placement, list[Outcome]]:
    """The placement as it was settled, and what each rank brought back."""
    if placement.devices != 1:
        raise UserError(f"strategy '{request.strategy.name}' runs on one device, --devices is {placement.devices}")
    told = (lambda _, report: on_report(report)) if on_report else None
    with InProcess(placement) as session:
        return session.placement, session.run(train_task, request, on_report=told)


def _result(request: Request, placement: Placement, outcomes: list[Outcome]) -> TrainResult:
    first, settings = outcomes[0], request.settings
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
        batch_per_device=-(-settings.batch // placement.devices),
        precision=settings.precision,
        steps=first.steps,
        epochs=len(first.epoch_seconds),
        epoch_seconds=first.epoch_seconds,
        step_seconds=interval_of(first.step_seconds),
        loss=first.loss,
        accuracy=first.accuracy,
        phases=first.phases,
        bytes_per_step=BytesPerStep(planned=0, traced=0, busiest=0),
        parameters=first.parameters,
        execution=first.execution,
        load=first.load,
        peak_memory_bytes=max((outcome.peak_memory_bytes or 0 for outcome in outcomes), default=0) or None,
        notes=[],
        checkpoint=settings.checkpoint,
        timeline=Timeline(tuple(span for outcome in outcomes for span in outcome.spans)),
    )


def _check_writable(path: Path) -> None:
    """Before hours of training, not after."""
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}")


def _interrupted(settings: Settings, outcome: Outcome) -> str:
    if settings.checkpoint:
        return f"stopped after {outcome.steps} steps; nothing is lost: go on with --resume (checkpoint {settings.checkpoint})"
    return f"stopped after {outcome.steps} steps; with --checkpoint FILE a stopped run can be resumed"
