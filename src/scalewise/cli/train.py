"""`scalewise train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from scalewise.cli import shared
from scalewise.cli.shared import WorkloadName, training_option
from scalewise.core.errors import RunFailed, UserError
from scalewise.core.training_options import CheckpointEvery
from scalewise.core.units import printable


def train(
    workload: WorkloadName,
    strategy: Annotated[str, training_option("strategy")] = "single",
    devices: Annotated[int, training_option("devices")] = 1,
    device_kind: shared.DeviceKind = "auto",
    hosts: Annotated[int, training_option("hosts")] = 1,
    link: Annotated[str | None, training_option("link")] = None,
    slow: Annotated[list[str] | None, training_option("slow")] = None,
    slice_percent: shared.SlicePercent = None,
    cores_per_device: shared.CoresPerDevice = 1,
    timeout: shared.Timeout = 60.0,
    batch: Annotated[int | None, training_option("batch")] = None,
    batch_per_device: Annotated[int | None, training_option("batch_per_device")] = None,
    epochs: Annotated[int | None, training_option("epochs")] = None,
    steps: Annotated[int | None, training_option("steps")] = None,
    optimizer: shared.Optimizer = None,
    learning_rate: Annotated[float | None, training_option("learning_rate")] = None,
    accumulate: Annotated[int, training_option("accumulate")] = 1,
    seed: Annotated[int, training_option("seed")] = 0,
    data: shared.DataPath = None,
    samples: shared.Samples = None,
    input: shared.InputShape = None,
    classes: shared.Classes = None,
    precision: shared.Precision = "fp32",
    execution: shared.Execution = "auto",
    compile_mode: shared.CompileMode = "default",
    memory_format: shared.MemoryFormat = "contiguous",
    convolutions: shared.Convolutions = "direct",
    tuned: Annotated[bool, training_option("tuned")] = False,
    load: shared.Load = "auto",
    checkpoint: Annotated[Path | None, training_option("checkpoint")] = None,
    checkpoint_every: Annotated[str | None, training_option("checkpoint_every")] = None,
    keep_checkpoints: Annotated[int, training_option("keep_checkpoints")] = 1,
    max_restarts: Annotated[int, training_option("max_restarts")] = 0,
    min_devices: Annotated[int | None, training_option("min_devices")] = None,
    resume: Annotated[bool, training_option("resume")] = False,
    overwrite: Annotated[bool, training_option("overwrite")] = False,
    trace: Annotated[Path | None, training_option("trace")] = None,
    on: shared.On = None,
    json: shared.Json = False,
) -> None:
    """Train a workload with a parallelism strategy and show where the time of a step goes."""
    from scalewise.core.training_options import TrainingOptions
    from scalewise.launch.placement import parse_slow
    from scalewise.strategies.base import batch_shares
    from scalewise.strategies.registry import strategy_of
    from scalewise.training.setup import prepared

    training_options = TrainingOptions(
        strategy=strategy,
        devices=devices,
        device_kind=device_kind,
        hosts=hosts,
        link=link,
        slow=parse_slow(slow or []),
        slice_percent=slice_percent,
        cores_per_device=cores_per_device,
        timeout_seconds=timeout,
        batch=batch,
        batch_per_device=batch_per_device,
        epochs=epochs,
        steps=steps,
        optimizer=optimizer,
        learning_rate=learning_rate,
        accumulate=accumulate,
        seed=seed,
        data=data,
        samples=samples,
        input_shape=input,
        classes=classes,
        precision=precision,
        execution=execution,
        compile_mode=compile_mode,
        memory_format=memory_format,
        convolutions=convolutions,
        tuned=tuned,
        load=load,
        checkpoint=checkpoint,
        checkpoint_every=_interval(checkpoint_every),
        keep_checkpoints=keep_checkpoints,
        max_restarts=max_restarts,
        min_devices=min_devices,
        resume=resume,
        overwrite=overwrite,
        trace=trace,
    )
    # Bad options are refused before torch is imported.
    chosen = None if strategy == "auto" else strategy_of(strategy)
    servers = chosen.servers if chosen else 0
    if on is not None:
        from scalewise.launch.schedulers import run_on

        run_on(on)
        return
    with prepared(training_options, workload):
        if devices > 1 or servers:
            from scalewise.launch.forkserver import load_for_ranks

            load_for_ranks()
        from scalewise.cli.shared import show_surely, training_bar, warn_of_oversubscription
        from scalewise.launch.placement import is_main_process
        from scalewise.training import train as verb

        warn_of_oversubscription(devices, device_kind, hosts, link, cores_per_device, servers)
        shares = batch_shares(chosen, verb.devices_asked(devices, chosen)) if chosen else devices
        with training_bar(verb.global_batch(batch, batch_per_device, shares)) as update_bar:
            result = verb.run_training(
                workload,
                training_options,
                on_report=update_bar,
                on_restart=lambda line: print(f"scalewise: {printable(line)}", file=sys.stderr),
                on_choosing=(lambda line: print(f"auto: {line}", file=sys.stderr)) if sys.stderr.isatty() else None,
            )
    if is_main_process():
        show_surely(result, json)
    if result.failed_trace:
        raise RunFailed(result.failed_trace)


def _interval(text: str | None) -> int | CheckpointEvery | None:
    if text is None or text == "auto":
        return text  # type: ignore[return-value]
    try:
        return int(text)
    except ValueError:
        raise UserError(f"--checkpoint-every is '{text}'; it must be a whole number of at least 1, or auto") from None
