"""`scalewise train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from scalewise.cli import options
from scalewise.cli.options import KEPT, LEARNING, WHERE, WorkloadName, option


def train(
    workload: WorkloadName,
    strategy: Annotated[
        str,
        option(
            WHERE,
            help="How it is spread; see `scalewise list strategies`. auto: the best exact one that advise finds here, "
            "on up to --devices (1: all there are).",
        ),
    ] = "single",
    devices: Annotated[int, option(WHERE, help="Workers, over all hosts.")] = 1,
    device_kind: options.DeviceKind = "auto",
    hosts: options.Hosts = 1,
    link: options.Link = None,
    slow: options.Slow = None,
    slice_percent: options.SlicePercent = None,
    cores_per_device: options.CoresPerDevice = 1,
    timeout: options.Timeout = 60.0,
    batch: Annotated[
        int | None, option(LEARNING, help="Global batch: samples per update, over all devices.", show_default="20")
    ] = None,
    batch_per_device: Annotated[int | None, option(LEARNING, help="The same per device.", show_default=False)] = None,
    epochs: Annotated[int | None, option(LEARNING, help="Passes over the data.", show_default="1")] = None,
    steps: Annotated[
        int | None,
        option(
            LEARNING,
            help="Batches, instead of epochs: one update each, or with parameter-server-async one by every worker.",
            show_default=False,
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        option(LEARNING, help="adam, adamw, sgd, momentum, adagrad or adafactor.", show_default="the workload's"),
    ] = None,
    learning_rate: Annotated[
        float | None, option(LEARNING, help="Step size of the optimizer.", show_default="the workload's")
    ] = None,
    accumulate: Annotated[
        int, option(LEARNING, help="Parts that a batch is computed in before its one update: less memory, same result.")
    ] = 1,
    seed: Annotated[int, option(LEARNING, help="Of initial weights and shuffling.")] = 0,
    data: options.DataPath = None,
    samples: options.Samples = None,
    input: options.InputShape = None,
    classes: options.Classes = None,
    precision: options.Precision = "fp32",
    execution: options.Execution = "auto",
    load: options.Load = "auto",
    checkpoint: Annotated[
        Path | None, option(KEPT, help="Written, whole or not at all, every epoch and at the end.", show_default=False)
    ] = None,
    checkpoint_every: Annotated[int | None, option(KEPT, help="Steps between checkpoints.", show_default=False)] = None,
    resume: Annotated[bool, option(KEPT, "--resume", help="Go on from the checkpoint.")] = False,
    trace: Annotated[
        Path | None, option(KEPT, help="Write a timeline that opens in Perfetto.", show_default=False)
    ] = None,
    json: options.Json = False,
) -> None:
    """Train a workload with a strategy, and say where the time went."""
    from scalewise.session.preload import load_for_ranks
    from scalewise.strategies.registry import strategy_of
    from scalewise.strategies.strategy import batch_shares, servers_of

    # A misspelt name is answered before torch is loaded.
    chosen = None if strategy == "auto" else strategy_of(strategy)
    servers = servers_of(chosen) if chosen else 0
    if devices > 1 or servers:
        load_for_ranks()
    from scalewise.cli.output import show
    from scalewise.cli.progress import training_bar, warn_of_oversubscription
    from scalewise.session.placement import parse_slow
    from scalewise.session.torchrun import is_main_process
    from scalewise.verbs import train as verb

    warn_of_oversubscription(devices, device_kind, hosts, link, cores_per_device, servers)
    shares = batch_shares(chosen, verb.devices_asked(devices)) if chosen else verb.devices_asked(devices)
    with training_bar(verb.global_batch(batch, batch_per_device, shares)) as told:
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
            on_choosing=(lambda line: print(f"auto: {line}", file=sys.stderr)) if sys.stderr.isatty() else None,
        )
    if is_main_process():
        show(result, json)
