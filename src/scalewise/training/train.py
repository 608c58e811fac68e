"""`scalewise train`: one workload, one strategy, one run."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from scalewise.advice.advise import AUTO, choose, most_devices
from scalewise.core.arguments import checked
from scalewise.core.errors import Interrupted, RankFailed, RunFailed
from scalewise.core.statistics import interval_of
from scalewise.core.timeline import shared_out
from scalewise.core.training_options import (
    DEFAULT_BATCH,
    CheckpointEvery,
    CompileMode,
    Convolutions,
    Execution,
    MemoryFormat,
    Precision,
    Settings,
    TrainingOptions,
)
from scalewise.data.dataset import DataRequest
from scalewise.formats.train_result import BytesPerStep, TrainResult
from scalewise.launch.parameter_server_session import ServedSession
from scalewise.launch.placement import Placement, under_torchrun
from scalewise.launch.real_hosts import real_hosts
from scalewise.models.catalogue import named
from scalewise.models.describe import describe
from scalewise.models.given_workload import given_workload
from scalewise.models.workload import Workload
from scalewise.parameter_server.server import Served
from scalewise.runtime.graceful_stop import StopSignals
from scalewise.strategies.base import Strategy, batch_shares, options_of
from scalewise.strategies.registry import strategy_of
from scalewise.training import asynchronous
from scalewise.training.checkpoint import Progress, check_checkpoint, progress_of, saved_progress
from scalewise.training.feasibility import check_memory
from scalewise.training.memory_plan import with_remedies
from scalewise.training.recovery import Recovery
from scalewise.training.results import (
    Outcome,
    Report,
    Request,
    bytes_per_step,
    checkpoints_of,
    curve_of,
    memory_of,
    notes_on,
    pace_of,
    samples_per_second,
    slowest,
    strategy_with_microbatches,
    timeline_of,
)
from scalewise.training.session_pool import AnySession, open_for, open_session
from scalewise.training.setup import placement_of, prepared, settings_of
from scalewise.training.tasks import train_task
from scalewise.training.tuned import with_tuned_options


@checked
def train(
    workload: str | Workload | nn.Module,
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
    data: Path | str | None = None,
    samples: int | None = None,
    input_shape: str | tuple[int, ...] | None = None,
    classes: int | None = None,
    precision: Precision = "fp32",
    execution: Execution = "auto",
    compile_mode: CompileMode = "default",
    memory_format: MemoryFormat = "contiguous",
    convolutions: Convolutions = "direct",
    tuned: bool = False,
    load: str = "auto",
    checkpoint: Path | str | None = None,
    checkpoint_every: int | CheckpointEvery | None = None,
    keep_checkpoints: int = 1,
    max_restarts: int = 0,
    min_devices: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    trace: Path | str | None = None,
    on_report: Callable[[Report], None] | None = None,
    on_choosing: Callable[[str], None] | None = None,
) -> TrainResult:
    """Train a workload with a parallelism strategy and report where the time of a step goes.

    A module is copied before it is trained: the argument keeps its weights, and `checkpoint` saves the trained ones.

    Args:
        workload: A built-in name ("unet:width=16"), "path/to/file.py:function", an nn.Module together with
            `input_shape` (trained as a classifier on generated inputs), or a `scalewise.Workload`.
        strategy: Parallelism strategy; see `scalewise list strategies`. "auto": the fastest exact strategy that
            `advise` predicts on this machine for up to `devices` devices (1: all devices).
        devices: Number of devices, over all hosts.
        device_kind: "cpu" (one core per device), "cuda" (one GPU per device), "slice" (devices share one GPU) or
            "auto".
        hosts: Number of emulated hosts (network namespaces; needs root).
        link: Bandwidth of the links between emulated hosts, such as "1gbit".
        slow: Share of its cores for a slow rank, as in {1: 0.5}.
        slice_percent: Percent of the GPU per slice; by default 100 / devices.
        cores_per_device: Cores and threads per cpu device.
        timeout_seconds: Seconds after which a hung rank fails the run (at least 30 during start-up).
        batch: Global batch: samples per update, over all devices; by default 20.
        batch_per_device: Batch per device, instead of the global batch.
        epochs: Passes over the data; by default 1.
        steps: Number of batches, instead of epochs.
        optimizer: "adam", "adamw", "sgd", "momentum", "adagrad" or "adafactor"; by default the workload's.
        learning_rate: Learning rate of the optimizer; by default the workload's.
        accumulate: Compute each batch in this many parts and accumulate gradients: less memory, same result.
        seed: Seed of the initial weights (except those of an nn.Module) and of shuffling.
        data: Folder or file with the data.
        samples: Use at most this many samples, evenly spaced.
        input_shape: Shape of one sample without the batch, (3, 224, 224) or "3x224x224". Needed for an nn.Module and
            for a function that returns one.
        classes: Number of classes. Needed for a function that returns an nn.Module.
        precision: Precision of matrix multiplications: "fp32", "tf32", "bf16" or "fp16". All except fp32 change the
            training result.
        execution: "eager", "graph" (the whole step as one CUDA graph), "compile" (torch.compile) or "auto".
        compile_mode: Mode of torch.compile.
        memory_format: "contiguous" or "channels_last": memory layout of images and of 2-D convolutions.
        convolutions: "direct", "fft" or "auto": algorithm of convolutions with long kernels.
        tuned: Use the execution options of the saved result of `tune` for this workload, device and precision.
        load: How samples are loaded: "device" (all in device memory), "stream:workers=4" (by 4 loader processes),
            "files" (read from their files in every epoch) or "auto".
        checkpoint: File to which a checkpoint is saved after every epoch and at the end. An existing file is refused
            unless `resume` or `overwrite` is given.
        checkpoint_every: Steps between checkpoints, or "auto": as often as saving takes at most 2 % of the
            time.
        keep_checkpoints: Number of checkpoints to keep: `checkpoint`, and earlier ones as FILE.1, FILE.2 ...
        max_restarts: Restart a run that loses a rank from its last checkpoint, at most this many times.
        min_devices: Restart with fewer devices, down to this number, if a restart made no progress.
        resume: Continue from the checkpoint.
        overwrite: Replace an existing checkpoint.
        trace: File for a timeline that opens in Perfetto.
        on_report: Function that is called with the progress of the run.
        on_choosing: Function that is called with a text while strategy "auto" is chosen.

    Returns:
        A `TrainResult`, which prints as a table: `step_seconds` (`median`, `low`, `high` of the 95 % interval),
        `epoch_seconds`, `loss`, `accuracy`, `phases` (seconds of a step by phase), `bytes_per_step`, `memory`.
        `to_dict()` returns the document of `scalewise train --json`, `to_dataframe()` the same as one row.

    Raises:
        UserError: An argument is invalid.
        RunFailed: The run failed; the message names the rank and the cause.

    Examples:
        >>> result = scalewise.train("linear", batch=20, steps=30, device_kind="cpu")
        >>> result.parameters
        12102220
        >>> sorted(result.phases)
        ['backward', 'forward', 'load', 'loss', 'update']
    """
    workload, shape, classes = given_workload(workload, input_shape, classes)
    options = TrainingOptions(
        strategy=strategy,
        devices=devices,
        device_kind=device_kind,
        hosts=hosts,
        link=link,
        slow=slow,
        slice_percent=slice_percent,
        cores_per_device=cores_per_device,
        timeout_seconds=timeout_seconds,
        batch=batch,
        batch_per_device=batch_per_device,
        epochs=epochs,
        steps=steps,
        optimizer=optimizer,
        learning_rate=learning_rate,
        accumulate=accumulate,
        seed=seed,
        data=Path(data) if data else None,
        samples=samples,
        input_shape=shape,
        classes=classes,
        precision=precision,
        execution=execution,
        compile_mode=compile_mode,
        memory_format=memory_format,
        convolutions=convolutions,
        tuned=tuned,
        load=load,
        checkpoint=Path(checkpoint) if checkpoint else None,
        checkpoint_every=checkpoint_every,
        keep_checkpoints=keep_checkpoints,
        max_restarts=max_restarts,
        min_devices=min_devices,
        resume=resume,
        overwrite=overwrite,
        trace=Path(trace) if trace else None,
    )
    with prepared(options):
        return run_training(workload, options, on_report, on_choosing)


def run_training(
    workload: str | Workload,
    options: TrainingOptions,
    on_report: Callable[[Report], None] | None = None,
    on_choosing: Callable[[str], None] | None = None,
    on_restart: Callable[[str], None] | None = None,
) -> TrainResult:
    """Run the training that `prepared` has checked."""
    workload = named(workload) if isinstance(workload, str) else workload
    why: list[str] = []
    if options.strategy == AUTO:
        options, why = _chosen(workload, options, on_choosing)
    strategy = strategy_of(options.strategy)
    options = replace(options, devices=devices_asked(options.devices, strategy))
    batch = global_batch(options.batch, options.batch_per_device, batch_shares(strategy, options.devices))
    settings = settings_of(options, batch)
    if options.tuned:
        shares = batch_shares(strategy, options.devices)
        settings, notes = with_tuned_options(settings, strategy, workload, options, -(-batch // shares))
        why = [*why, *notes]
    strategy.check_execution(settings.execution_options)
    request = Request(
        workload,
        strategy,
        settings,
        DataRequest(options.data, options.samples, options.seed),
        options.input_shape,
        options.classes,
    )
    opened = open_for if options.max_restarts else open_session  # a single device needs a process that may be lost
    session = opened(strategy, placement_of(options, strategy.servers))
    if saved := _finished(request):
        return _already_finished(request, session.placement, saved, why)
    check_memory(request, session.placement)

    def attempt(request: Request, placement: Placement, on_report: Callable[[Report], None]) -> _Run:
        return _run(opened(strategy, placement), request, on_report)

    recovery = Recovery(options, attempt, on_restart)
    run = recovery.run(request, session.placement, on_report)
    if any(outcome.interrupted for outcome in run.outcomes):
        raise Interrupted(_interrupted(settings, run.outcomes[0]))
    result = _result(request, run)
    result = replace(result, notes=[*why, *result.notes], restarts=recovery.restarts)
    if options.trace and result.timeline:
        try:
            result.timeline.write_chrome_trace(options.trace)
        except RunFailed as error:  # must not lose the result
            return replace(result, failed_trace=str(error), notes=[*result.notes, str(error)])
    return result


def _chosen(
    workload: str | Workload, options: TrainingOptions, on_choosing: Callable[[str], None] | None
) -> tuple[TrainingOptions, list[str]]:
    """Replace the strategy 'auto' by the one that `advise` recommends, and say why."""
    available = Placement(
        options.devices, options.device_kind, options.hosts, options.link, slice_percent=options.slice_percent
    )
    available = replace(available, devices=most_devices(available) if isinstance(workload, str) else 1)
    batch = global_batch(options.batch, options.batch_per_device, available.devices)
    auto = choose(
        workload,
        available,
        batch,
        precision=options.precision,
        load=options.load,
        data=options.data,
        input_shape=options.input_shape,
        classes=options.classes,
        on_progress=on_choosing,
    )
    hosts, link = (options.hosts, options.link) if auto.devices > 1 else (1, None)
    chosen = replace(
        options,
        strategy=auto.strategy,
        devices=auto.devices,
        batch=batch,
        batch_per_device=None,
        hosts=hosts,
        link=link,
    )
    return chosen, [auto.why]


def _finished(request: Request) -> Progress | None:
    """Progress in the checkpoint of a resumed run that has already reached its last step; else None."""
    settings = request.settings
    if not settings.resume or settings.checkpoint is None:
        return None
    saved = saved_progress(settings.checkpoint)
    if saved is None or saved.steps_done < settings.total_steps(saved.samples):
        return None  # the ranks refuse a checkpoint that is damaged or belongs to another run
    workload = request.resolved()
    samples = len(workload.data(request.data))
    check_checkpoint(settings.checkpoint, progress_of(workload, samples, settings, saved.steps_done))
    return saved


def _already_finished(request: Request, placement: Placement, saved: Progress, why: list[str]) -> TrainResult:
    settings = request.settings
    total = settings.total_steps(saved.samples)
    note = (
        f"already finished: checkpoint {settings.checkpoint} is at step {saved.steps_done} of {total}; raise --epochs "
        "or --steps to train further"
    )
    return TrainResult(
        workload=saved.workload,
        data="",
        strategy=request.strategy.name,
        options=options_of(request.strategy),
        devices=placement.devices,
        device_kind=placement.device_kind,
        hosts=placement.hosts,
        link=placement.link,
        batch=settings.batch,
        batch_per_device=-(-settings.batch // batch_shares(request.strategy, placement.devices)),
        precision=settings.precision,
        steps=0,
        epochs=0,
        epoch_seconds=[],
        step_seconds=interval_of([]),
        loss=math.nan,
        accuracy=None,
        phases={},
        phases_rank=0,
        bytes_per_step=BytesPerStep(0, None, 0),
        parameters=describe(request.resolved()).parameters,
        execution="",
        load="",
        peak_memory_bytes=None,
        spread=strategy_with_microbatches(request.strategy),
        notes=[*why, note],
        checkpoint=settings.checkpoint,
        already_finished=True,
    )


def devices_asked(devices: int, strategy: Strategy) -> int:
    """Number of devices: `devices`, or all that the scheduler started if `devices` is the default."""
    if devices > 1 or strategy.reference:
        return devices
    if hosts := real_hosts():
        usable = hosts.present[0].devices if strategy.one_host else hosts.size
        return max(1, usable - strategy.servers)
    return int(os.environ["WORLD_SIZE"]) if under_torchrun() else devices


def global_batch(batch: int | None, batch_per_device: int | None, shares: int) -> int:
    """Return the global batch. At most one of `batch` and `batch_per_device` is given."""
    if batch_per_device is not None:
        return batch_per_device * shares
    return DEFAULT_BATCH if batch is None else batch


@dataclass(frozen=True)
class _Run:
    """Placement of a finished run and the results of its processes."""

    placement: Placement
    outcomes: list[Outcome]
    served: list[Served]
    lost: list[str]


def _run(session: AnySession, request: Request, on_report: Callable[[Report], None] | None) -> _Run:
    forward = _only_progress(on_report) if on_report else None
    try:
        with StopSignals(relayed=under_torchrun()) as signals, session:
            signals.request = session.request_stop
            outcomes = session.run(train_task, request, on_report=forward)
            signals.request = None
            served, lost = (session.served, session.lost) if isinstance(session, ServedSession) else ([], [])
            return _Run(session.placement, outcomes, served, lost)
    except RankFailed as error:
        if error.kind == "oom":
            raise RankFailed(with_remedies(error.failure, request, session.placement)) from error
        raise
    except KeyboardInterrupt:
        saved = request.settings.checkpoint
        if saved and saved.exists():
            how = f"continue from the checkpoint with --checkpoint {saved} --resume"
            raise Interrupted(f"interrupted; {how}") from None
        raise


def _only_progress(on_report: Callable[[Report], None]) -> Callable[[int, Report], None]:
    """Forward only reports that show progress."""
    steps_done = 0

    def forward(rank: int, report: Report) -> None:
        nonlocal steps_done
        if report.steps_done > steps_done or (rank == 0 and report.steps_done == steps_done):
            steps_done = report.steps_done
            on_report(report)

    return forward


def _result(request: Request, run: _Run) -> TrainResult:
    outcomes, placement, settings = run.outcomes, run.placement, request.settings
    first = outcomes[0]
    is_asynchronous = any(outcome.updates for outcome in outcomes)  # a worker that started late may have no update
    epochs = (
        asynchronous.epoch_seconds(outcomes, settings)
        if is_asynchronous
        else slowest([outcome.epoch_seconds for outcome in outcomes])
    )
    seconds = (
        asynchronous.step_seconds(outcomes)
        if is_asynchronous
        else slowest([outcome.step_seconds for outcome in outcomes])
    )
    step = interval_of(seconds)
    pace = pace_of([outcome.phases for outcome in outcomes], step.median if is_asynchronous else None)
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
        steps=run.served[0].applied if is_asynchronous else first.steps,
        epochs=len(epochs),
        epoch_seconds=epochs,
        step_seconds=step,
        samples_per_second=(
            asynchronous.samples_per_second(outcomes)
            if is_asynchronous
            else samples_per_second(outcomes, settings.batch)
        ),
        loss=asynchronous.last_loss(outcomes, placement.devices) if is_asynchronous else first.loss,
        accuracy=next((outcome.accuracy for outcome in outcomes if outcome.accuracy is not None), None),
        phases=shared_out(outcomes[pace].phases, step.median),
        phases_rank=outcomes[pace].worker if is_asynchronous else pace,
        bytes_per_step=bytes_per_step(request, placement, outcomes),
        parameters=first.parameters,
        execution=first.execution,
        compile_mode=settings.compile_mode if settings.execution_options.compiles else None,
        memory_format=settings.memory_format,
        convolutions=settings.convolutions,
        compile_seconds=max(outcome.compile_seconds for outcome in outcomes),
        load=next((outcome.load for outcome in outcomes if outcome.load), ""),
        peak_memory_bytes=max((outcome.peak_memory_bytes or 0 for outcome in outcomes), default=0) or None,
        memory=memory_of(request, placement, outcomes),
        staleness=asynchronous.staleness(run.served) if is_asynchronous else None,
        updates=asynchronous.updates(run.served, outcomes, placement.devices) if is_asynchronous else None,
        spread=strategy_with_microbatches(request.strategy, first.footprint.microbatches if first.footprint else None),
        notes=notes_on(request, placement, outcomes) + run.lost,
        checkpoint=settings.checkpoint,
        checkpoints=checkpoints_of(first) if settings.checkpoint else None,
        timeline=timeline_of(outcomes),
        curve=asynchronous.curve(outcomes) if is_asynchronous else curve_of(first, settings.batch),
    )


def _interrupted(settings: Settings, outcome: Outcome) -> str:
    done = f"stopped after {outcome.last_step} step{'' if outcome.last_step == 1 else 's'}"
    if settings.checkpoint is None:
        return f"{done}; add --checkpoint FILE to be able to resume a stopped run"
    if not settings.checkpoint.exists():
        return f"{done}; nothing was saved"
    return f"{done}; continue with --checkpoint {settings.checkpoint} --resume"
