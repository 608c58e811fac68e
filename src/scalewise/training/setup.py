"""Check the options of a run and lock its checkpoint before torch is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from scalewise.core.errors import UserError
from scalewise.core.files import check_writable, sole_trainer
from scalewise.core.training_options import AUTO_STRATEGY, DEFAULT_BATCH, Settings, TrainingOptions, check_data
from scalewise.launch.placement import Placement, check_one_machine, is_main_process, under_torchrun
from scalewise.launch.real_hosts import real_hosts
from scalewise.models.catalogue import check_name
from scalewise.strategies.base import SessionKind, Strategy
from scalewise.strategies.registry import STRATEGIES, strategy_of
from scalewise.training.tuned import check_tuned


@contextmanager
def prepared(options: TrainingOptions, workload: object = None) -> Iterator[None]:
    """Check the options and the name of the workload, and lock the checkpoint until the run ends."""
    if isinstance(workload, str):
        check_name(workload, options.input_shape, options.classes)
    _check(options)
    if options.checkpoint is None or not _writes_checkpoint():
        yield
        return
    with sole_trainer(options.checkpoint):
        _check_checkpoint(options)
        yield


def settings_of(options: TrainingOptions, batch: int) -> Settings:
    """Settings for the ranks; `batch` is the global batch."""
    return Settings(
        batch=batch,
        epochs=1 if options.epochs is None and options.steps is None else options.epochs,
        steps=options.steps,
        optimizer=options.optimizer,
        learning_rate=options.learning_rate,
        accumulate=options.accumulate,
        seed=options.seed,
        precision=options.precision,
        execution=options.execution,
        compile_mode=options.compile_mode,
        memory_format=options.memory_format,
        convolutions=options.convolutions,
        load=options.load,
        checkpoint=options.checkpoint,
        checkpoint_every="auto" if options.max_restarts and _may_choose(options) else options.checkpoint_every,
        keep_checkpoints=options.keep_checkpoints,
        resume=options.resume,
        traced=options.trace is not None,
    )


def placement_of(options: TrainingOptions, servers: int) -> Placement:
    """Placement of the ranks; raise UserError for options that are impossible on any machine."""
    return Placement(
        options.devices,
        options.device_kind,
        options.hosts,
        options.link,
        options.slow or {},
        options.slice_percent,
        options.cores_per_device,
        options.timeout_seconds,
        servers,
    )


def check_strategy(strategy: Strategy, placement: Placement) -> None:
    """Raise UserError if the strategy cannot run on this number of devices."""
    if not strategy.reference:
        strategy.check_devices(placement.devices)
    elif placement.devices != 1:
        parallel = ", ".join(name for name, kind in STRATEGIES.items() if not kind.reference)
        raise UserError(
            f"strategy '{strategy.name}' runs on one device, --devices is {placement.devices}; "
            f"valid for several: {parallel}"
        )
    elif placement.slow:
        raise UserError(f"--slow needs several devices, strategy '{strategy.name}' runs on one; remove --slow")


def _check(options: TrainingOptions) -> None:
    check_tuned(options)
    for name, alternative in (("epochs", "steps"), ("batch", "batch_per_device")):
        first, second = getattr(options, name), getattr(options, alternative)
        if first is not None and second is not None:
            flag = f"--{alternative.replace('_', '-')}"
            raise UserError(f"--{name} {first} and {flag} {second} exclude each other; give one")
    if options.resume and options.overwrite:
        raise UserError("--resume and --overwrite exclude each other; give one")
    if options.overwrite and options.checkpoint is None:
        raise UserError("--overwrite needs --checkpoint FILE; name the file to replace")
    if options.max_restarts < 0:
        raise UserError(f"--max-restarts is {options.max_restarts}; it must be 0 or more")
    if options.max_restarts and options.checkpoint is None:
        raise UserError("--max-restarts needs --checkpoint FILE, from which the run continues")
    if options.min_devices is not None:
        if not options.max_restarts:
            raise UserError("--min-devices needs --max-restarts N")
        if not 1 <= options.min_devices <= options.devices:
            raise UserError(f"--min-devices is {options.min_devices}; it must be 1 to {options.devices} (--devices)")
    if options.batch_per_device is not None and options.batch_per_device < 1:
        raise UserError(f"--batch-per-device is {options.batch_per_device}; it must be at least 1")
    settings_of(options, DEFAULT_BATCH if options.batch is None else options.batch).check()
    check_data(options.load, options.data, options.samples)
    if options.samples is not None and options.batch is not None and options.batch > options.samples:
        raise UserError(
            f"--batch is {options.batch:,} but there are only {options.samples:,} samples (--samples); use at most "
            f"{options.samples:,}"
        )
    if options.device_kind == "cpu" and options.precision == "tf32":
        raise UserError("--precision tf32 needs a CUDA device; valid on the CPU: fp32, bf16, fp16")
    if options.device_kind == "cpu" and options.execution == "graph":
        raise UserError("--execution graph is not possible: CUDA graphs need a CUDA device; use eager or auto")
    _check_devices(options)
    for path in (options.trace, options.checkpoint):
        if path:
            check_writable(path)


def _check_devices(options: TrainingOptions) -> None:
    strategy = None if options.strategy == AUTO_STRATEGY else strategy_of(options.strategy)
    placement = placement_of(options, strategy.servers if strategy else 0)
    if strategy:
        check_restarts(options, strategy)
    if under_torchrun() or real_hosts():
        return  # a single device stands for all ranks that the scheduler started
    check_one_machine(placement)
    if strategy:
        check_strategy(strategy, placement)
        strategy.check_execution(settings_of(options, DEFAULT_BATCH).execution_options)


def check_restarts(options: TrainingOptions, strategy: Strategy) -> None:
    """Raise UserError for recovery options that are impossible with the strategy."""
    has_servers = strategy.session_kind is SessionKind.RANKS_AND_SERVERS
    if options.checkpoint_every == "auto" and has_servers:
        raise UserError(f"--checkpoint-every auto is not possible with {strategy.name}; give a number of steps")
    if not options.max_restarts:
        return
    if under_torchrun():
        raise UserError("--max-restarts is for ranks that scalewise starts; torchrun has an option of the same name")
    if not strategy.exact:
        raise UserError(
            f"--max-restarts is not possible with {strategy.name}, which is not exact; it replaces lost workers itself "
            "(replacements=N)"
        )
    if strategy.session_kind is SessionKind.ONE_PROCESS:
        raise UserError(f"--max-restarts is not possible with {strategy.name} in one process; use another strategy")


def _may_choose(options: TrainingOptions) -> bool:
    """Whether the interval between checkpoints is open and can be chosen during the run."""
    servers = options.strategy != AUTO_STRATEGY and strategy_of(options.strategy).servers
    return options.checkpoint_every is None and not servers


def _check_checkpoint(options: TrainingOptions) -> None:
    assert options.checkpoint is not None
    exists = options.checkpoint.exists()
    if options.resume and not exists:
        raise UserError(f"there is no checkpoint {options.checkpoint} to resume from")
    if exists and not options.resume and not options.overwrite:
        raise UserError(
            f"checkpoint {options.checkpoint} already exists; continue it with --resume or replace it with --overwrite"
        )


def _writes_checkpoint() -> bool:
    """Whether this process may write the checkpoint: under torchrun only rank 0 does."""
    if "RANK" not in os.environ:
        return True
    return is_main_process()
