"""`scalewise measure`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from scalewise.cli import options
from scalewise.cli.lists import whole_numbers
from scalewise.cli.options import KEPT, LEARNING, WHERE, option
from scalewise.errors import RunFailed

if TYPE_CHECKING:
    from scalewise.results.measurement import Measurement
    from scalewise.verbs.sweep import Progress

HOW = "How it is timed"


def measure(
    workloads: Annotated[
        list[str],
        typer.Argument(
            metavar="WORKLOAD...",
            help="One or more: built-in names with options (see `scalewise list workloads`), path/to/file.py:function.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, option(KEPT, help="Folder for measurements.jsonl and environment.json.", show_default=False)],
    resume: Annotated[
        bool, option(KEPT, "--resume", help="Go on in a folder: finished cells stay, failed ones are tried again.")
    ] = False,
    strategy: Annotated[
        list[str] | None,
        option(WHERE, help="How it is spread; repeat the option for several.", show_default="single, mirrored"),
    ] = None,
    devices: Annotated[str, option(WHERE, help="Workers, over all hosts; a comma list.")] = "1,2",
    device_kind: options.DeviceKind = "auto",
    hosts: Annotated[str, option(WHERE, help="Rehearse so many hosts (needs root); a comma list.")] = "1",
    link: Annotated[
        str | None, option(WHERE, help="Speeds of the rehearsed links: 1gbit; a comma list.", show_default=False)
    ] = None,
    slice_percent: options.SlicePercent = None,
    cores_per_device: options.CoresPerDevice = 1,
    timeout: options.Timeout = 60.0,
    batch: Annotated[
        str | None,
        option(LEARNING, help="Global batches: samples per update, over all devices.", show_default="10,50,100"),
    ] = None,
    batch_per_device: Annotated[str | None, option(LEARNING, help="The same per device.", show_default=False)] = None,
    optimizer: Annotated[
        str | None,
        option(LEARNING, help="adam, adamw, sgd, momentum, adagrad or adafactor.", show_default="the workload's"),
    ] = None,
    protocol: Annotated[
        Literal["quick", "paper"],
        option(HOW, help="quick: until the interval is narrow enough. paper: 20 epochs, the first dropped."),
    ] = "quick",
    interval: Annotated[
        float, option(HOW, help="Width that the 95 % interval of a step is to reach, in percent.")
    ] = 2.0,
    budget: Annotated[float, option(HOW, help="Seconds that a cell may take to get there.")] = 30.0,
    budget_total: Annotated[
        float | None, option(HOW, help="Seconds for all cells together.", show_default="no limit")
    ] = None,
    epochs: Annotated[int | None, option(HOW, help="Of --protocol paper.", show_default="20")] = None,
    data: options.DataPath = None,
    samples: options.Samples = None,
    input: options.InputShape = None,
    classes: options.Classes = None,
    precision: options.Precision = "fp32",
    execution: options.Execution = "auto",
    load: options.Load = "auto",
    json: options.Json = False,
) -> None:
    """Time a grid of workloads, strategies, devices and batches, cell by cell, into a folder."""
    chosen = strategy or ["single", "mirrored"]
    from scalewise.strategies.registry import strategy_of

    for each in chosen:
        strategy_of(each)  # a misspelt name is answered before torch is loaded
    grid: dict[str, Any] = {
        "devices": whole_numbers("--devices", devices),
        "hosts": whole_numbers("--hosts", hosts),
        "link": [each.strip() for each in link.split(",")] if link is not None else [],
        "batch": whole_numbers("--batch", batch) if batch is not None else None,
        "batch_per_device": None if batch_per_device is None else whole_numbers("--batch-per-device", batch_per_device),
    }
    from scalewise.session.preload import load_for_ranks

    if max(grid["devices"]) > 1:
        load_for_ranks()
    from scalewise.cli.output import show
    from scalewise.results.store import FILE
    from scalewise.verbs.measure import measure as verb

    anew = (
        f"there is nothing to resume in {out}; this sweep starts anew" if resume and not (out / FILE).exists() else ""
    )
    with sweep_bar(anew) as (on_progress, on_cell):
        result = verb(
            workloads,
            out=out,
            strategy=chosen,
            **grid,
            device_kind=device_kind,
            slice_percent=slice_percent,
            cores_per_device=cores_per_device,
            timeout_seconds=timeout,
            protocol=protocol,
            interval=interval,
            budget=budget,
            budget_total=budget_total,
            epochs=epochs,
            resume=resume,
            optimizer=optimizer,
            precision=precision,
            execution=execution,
            load=load,
            data=data,
            samples=samples,
            input_shape=input,
            classes=classes,
            on_progress=on_progress,
            on_cell=on_cell,
        )
    show(result, json)
    if result.failed:
        cells = len(result.measurements)
        count = f"{len(result.failed)} of {cells} cell{'s' if cells > 1 else ''} failed"
        raise RunFailed(f"{count}, the first because {result.failed[0].reason}; --resume tries them again")


@contextmanager
def sweep_bar(first: str = "") -> Iterator[tuple[Any, Any]]:
    """Callbacks for a sweep: a line per finished cell; for people also a bar, and the current cell's interval.

    `first` is said once a sweep is under way, that is, not refused.
    """
    from rich import progress
    from rich.console import Console

    from scalewise.measuring.measured import cell_line

    console = Console(stderr=True, highlight=False, soft_wrap=True)

    unsaid = [f"scalewise: {first}"] if first else []

    def begin() -> None:
        while unsaid:
            console.print(unsaid.pop(), markup=False)

    def line(measurement: Measurement) -> None:
        begin()
        console.print(cell_line(measurement), markup=False)

    if not sys.stderr.isatty():
        yield None, line
        return
    columns = (
        progress.BarColumn(bar_width=20),
        progress.TextColumn("{task.fields[cells]}"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.description}"),
    )
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0, cells="")

        def told(now: Progress) -> None:
            begin()
            bar.update(task, completed=now.fraction, cells=f"{now.done}/{now.total} cells", description=now.text)

        yield told, line
