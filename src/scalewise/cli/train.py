"""`scalewise train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewise.cli import options
from scalewise.cli.options import WorkloadName
from scalewise.strategies.registry import strategy_of


def train(
    workload: WorkloadName,
    strategy: Annotated[str, typer.Option(help="How it is spread; see `scalewise list strategies`.")] = "single",
    devices: Annotated[int, typer.Option(help="Workers, over all hosts.")] = 1,
    batch: Annotated[
        int | None,
        typer.Option(help="Global batch: samples per update over all devices. [default: 20]", show_default=False),
    ] = None,
    batch_per_device: Annotated[int | None, typer.Option(help="The same per device.", show_default=False)] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data. [default: 1]", show_default=False)] = None,
    steps: Annotated[int | None, typer.Option(help="Updates, instead of epochs.", show_default=False)] = None,
    device_kind: options.DeviceKind = "auto",
    hosts: options.Hosts = 1,
    link: options.Link = None,
    slow: options.Slow = None,
    slice_percent: options.SlicePercent = None,
    cores_per_device: options.CoresPerDevice = 1,
    timeout: options.Timeout = 60.0,
    data: options.DataPath = None,
    samples: options.Samples = None,
    input: options.InputShape = None,
    classes: options.Classes = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help="adam, adamw, sgd, momentum, adagrad. [default: the workload's]", show_default=False),
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="[default: the workload's]", show_default=False)] = None,
    accumulate: Annotated[
        int,
        typer.Option(help="Compute each batch in so many parts before its one update: less memory, same mathematics."),
    ] = 1,
    seed: Annotated[int, typer.Option(help="Of initial weights and shuffling.")] = 0,
    precision: options.Precision = "fp32",
    execution: options.Execution = "auto",
    load: options.Load = "auto",
    checkpoint: Annotated[
        Path | None, typer.Option(help="Written (atomically) every epoch and at the end.", show_default=False)
    ] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.", show_default=False)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write a timeline that opens in Perfetto.", show_default=False)
    ] = None,
    json: options.Json = False,
) -> None:
    """Train a workload with a strategy, and say where the time went."""
    strategy_of(strategy)  # a misspelt name is answered before torch is loaded
    from scalewise.cli.output import show
    from scalewise.cli.progress import training_bar
    from scalewise.session.placement import parse_slow
    from scalewise.session.torchrun import is_main_process
    from scalewise.verbs import train as verb

    with training_bar(verb.global_batch(batch, batch_per_device, verb.devices_asked(devices))) as told:
        result = verb.train(
            workload,
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
            precision=precision,
            execution=execution,
            load=load,
            data=data,
            samples=samples,
            input_shape=input,
            classes=classes,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            resume=resume,
            trace=trace,
            on_report=told,
        )
    if is_main_process():
        show(result, json)
