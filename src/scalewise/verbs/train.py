"""`scalewise train`: one workload, one strategy, one run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from scalewise.atomic import check_writable
from scalewise.data.data import DataRequest
from scalewise.errors import RunFailed, UserError
from scalewise.results.statistics import interval_of
from scalewise.results.train import BytesPerStep, TrainResult
from scalewise.results.units import seconds_text
from scalewise.session.cores import allowed_cores
from scalewise.session.placement import Placement
from scalewise.session.torchrun import under_torchrun
from scalewise.step.settings import Execution, Precision, Settings
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.strategy import Backend, options_of
from scalewise.timeline import Timeline
from scalewise.training.loop import Outcome, Report
from scalewise.training.request import Request
from scalewise.training.task import train_task
from scalewise.verbs.opening import open_session
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
) -> TrainResult:
    """Train and say where the time went. `batch` is global, over all devices.

    >>> print(scalewise.train("linear", batch=20, epochs=2))
    """
    chosen = strategy_of(strategy)
    devices = devices_asked(devices)
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
    for path in (trace, checkpoint):
        if path:
            check_writable(Path(path))
    placement = Placement(
        devices, device_kind, hosts, link, slow or {}, slice_percent, cores_per_device, timeout_seconds
    )
    placement, outcomes = _run(request, placement, on_report)
    result = _result(request, placement, outcomes)
    if trace and result.timeline:
        result.timeline.write_chrome_trace(Path(trace))
    if outcomes[0].interrupted:
        raise RunFailed(_interrupted(settings, outcomes[0]))
    return result


def devices_asked(devices: int) -> int:
    """Under torchrun the number of ranks is already decided."""
    return int(os.environ["WORLD_SIZE"]) if devices == 1 and under_torchrun() else devices


def global_batch(batch: int | None, batch_per_device: int | None, devices: int) -> int:
    """The two meanings of 'batch', never both."""
    if batch is not None and batch_per_device is not None:
        raise UserError(f"--batch {batch} and --batch-per-device {batch_per_device} exclude each other; give one")
    if batch_per_device is not None:
        if batch_per_device < 1:
            raise UserError(f"--batch-per-device is {batch_per_device}; it must be at least 1")
        return batch_per_device * devices
    return DEFAULT_BATCH if batch is None else batch


def _run(
    request: Request, placement: Placement, on_report: Callable[[Report], None] | None
) -> tuple[Placement, list[Outcome]]:
    """The placement as it was settled, and what each rank brought back."""
    told = (lambda rank, report: on_report(report) if rank == 0 else None) if on_report else None
    try:
        with open_session(request.strategy, placement) as session:
            return session.placement, session.run(train_task, request, on_report=told)
    except KeyboardInterrupt:
        saved = request.settings.checkpoint
        if saved and saved.exists():
            raise RunFailed(f"interrupted; go on from the last checkpoint with --checkpoint {saved} --resume") from None
        raise


def _result(request: Request, placement: Placement, outcomes: list[Outcome]) -> TrainResult:
    first, settings = outcomes[0], request.settings
    epoch_seconds = _slowest([outcome.epoch_seconds for outcome in outcomes])
    pace = _pace([outcome.phases for outcome in outcomes])
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
        epochs=len(epoch_seconds),
        epoch_seconds=epoch_seconds,
        step_seconds=interval_of(_slowest([outcome.step_seconds for outcome in outcomes])),
        loss=first.loss,
        accuracy=first.accuracy,
        phases=outcomes[pace].phases,
        phases_rank=pace,
        bytes_per_step=_bytes(request, placement, outcomes),
        parameters=first.parameters,
        execution=first.execution,
        load=first.load,
        peak_memory_bytes=max((outcome.peak_memory_bytes or 0 for outcome in outcomes), default=0) or None,
        notes=_notes(request, placement, outcomes),
        checkpoint=settings.checkpoint,
        timeline=_timeline(outcomes),
    )


def _timeline(outcomes: list[Outcome]) -> Timeline:
    """All ranks' spans, counted from the first one's start."""
    spans = [span for outcome in outcomes for span in outcome.spans]
    origin = min((span.start for span in spans), default=0.0)
    return Timeline(tuple(replace(span, start=span.start - origin) for span in spans))


def _slowest(ranks: list[list[float]]) -> list[float]:
    """A step, or an epoch, takes as long as it takes the slowest rank."""
    return [max(seconds) for seconds in zip(*ranks, strict=False)]


def _pace(ranks: list[dict[str, float]]) -> int:
    """The rank that sets the pace: the first, which leads where one leads, unless another takes longer."""
    totals = [sum(phases.values()) for phases in ranks]
    return 0 if totals[0] >= 0.95 * max(totals) else totals.index(max(totals))


def _bytes(request: Request, placement: Placement, outcomes: list[Outcome]) -> BytesPerStep:
    backend: Backend = "nccl" if placement.device_kind == "cuda" else "gloo"
    footprint = outcomes[0].footprint
    assert footprint is not None
    plan = request.strategy.plan(footprint, placement.devices, request.settings.batch, backend)
    steps = outcomes[0].traffic.steps
    if placement.devices == 1:
        return BytesPerStep(plan.bytes_per_step, 0, plan.busiest_bytes)
    if backend == "nccl" or not steps:
        return BytesPerStep(plan.bytes_per_step, None, plan.busiest_bytes)
    sent = sum(outcome.traffic.sent_bytes for outcome in outcomes)
    busiest = max(outcome.traffic.sent_bytes + outcome.traffic.received_bytes for outcome in outcomes)
    return BytesPerStep(plan.bytes_per_step, round(sent / steps), round(busiest / steps))


def _notes(request: Request, placement: Placement, outcomes: list[Outcome]) -> list[str]:
    outcome = outcomes[0]
    notes = []
    if outcome.resumed_at:
        notes.append(f"resumed at step {outcome.resumed_at}, now at {outcome.resumed_at + outcome.steps}")
    if outcome.source.startswith("synthetic"):
        notes.append(f"trained on {outcome.source}; fetch the study's recordings with: scalewise data speech")
    if not request.strategy.exact:
        notes.append(f"{request.strategy.name} with these options is not exact: its weights differ from one device's")
    cores = len(allowed_cores())
    if placement.oversubscribed and not under_torchrun():  # whose ranks each know their own cores only
        notes.append(
            f"oversubscribed: {placement.devices} cpu devices share {cores} core{'s' if cores > 1 else ''}, so its "
            "times say little about real devices"
        )
    for rank, share in placement.slow.items():
        notes.append(f"rank {rank} was slowed down to {share:.0%} of its core")
    return notes + _straggler(outcomes)


def _straggler(outcomes: list[Outcome]) -> list[str]:
    """A rank that computes much longer than another: the others wait for it in `reduce`, as for a slow network."""
    working = [
        sum(outcome.phases.get(phase, 0.0) for phase in ("forward", "backward", "update")) for outcome in outcomes
    ]
    slow, fast = max(working), min(working)
    if len(outcomes) == 1 or fast == 0 or slow < 1.3 * fast:
        return []
    return [
        f"rank {working.index(slow)} computes {slow / fast:.1f} times as long as rank {working.index(fast)} "
        f"({seconds_text(slow)} against {seconds_text(fast)} per step): the others wait for it, beside the network"
    ]


def _interrupted(settings: Settings, outcome: Outcome) -> str:
    if settings.checkpoint:
        return f"stopped after {outcome.steps} steps; go on with --checkpoint {settings.checkpoint} --resume"
    return f"stopped after {outcome.steps} steps; with --checkpoint FILE a stopped run can be resumed"
