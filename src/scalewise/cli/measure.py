"""`scalewise measure`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from scalewise.cli import shared
from scalewise.cli.shared import option, training_option_list
from scalewise.core.arguments import whole_numbers
from scalewise.core.errors import RunFailed
from scalewise.core.files import check_usable
from scalewise.core.training_options import DEVICES, OUTPUT, check_data, check_optimizer

if TYPE_CHECKING:
    from scalewise.formats.store import Measurement
    from scalewise.sweep.sweep import Progress

TIMING = "Timing"


def measure(
    workloads: Annotated[
        list[str],
        typer.Argument(
            metavar="WORKLOAD...",
            help="One or more workloads: built-in names with options (see `scalewise list workloads`) or "
            "path/to/file.py:function.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, option(OUTPUT, help="Folder for measurements.jsonl and environment.json.", show_default=False)
    ],
    resume: Annotated[
        bool,
        option(OUTPUT, "--resume", help="Continue a sweep in its folder: keep finished cells and repeat failed ones."),
    ] = False,
    strategy: Annotated[
        list[str] | None,
        option(
            DEVICES,
            help="Parallelism strategy; see `scalewise list strategies`. Repeat the option for several.",
            show_default="single, mirrored",
        ),
    ] = None,
    devices: Annotated[str, training_option_list("devices")] = "1,2",
    device_kind: shared.DeviceKind = "auto",
    hosts: Annotated[str, training_option_list("hosts")] = "1",
    link: Annotated[str | None, training_option_list("link")] = None,
    slice_percent: shared.SlicePercent = None,
    cores_per_device: shared.CoresPerDevice = 1,
    timeout: shared.Timeout = 60.0,
    batch: Annotated[str | None, training_option_list("batch", shown_default="10,50,100")] = None,
    batch_per_device: Annotated[str | None, training_option_list("batch_per_device")] = None,
    optimizer: shared.Optimizer = None,
    protocol: Annotated[
        Literal["quick", "paper"],
        option(
            TIMING,
            help="quick: stop when the interval is narrow enough. paper: 20 epochs, of which the first is dropped.",
        ),
    ] = "quick",
    interval: Annotated[
        float, option(TIMING, help="Target width of the 95 % interval of the step time, in percent: 2 is ± 1 %.")
    ] = 2.0,
    budget: Annotated[float, option(TIMING, help="Time limit per cell, in seconds.")] = 30.0,
    budget_total: Annotated[
        float | None, option(TIMING, help="Time limit for all cells, in seconds.", show_default="no limit")
    ] = None,
    epochs: Annotated[int | None, option(TIMING, help="Epochs per cell (--protocol paper).", show_default="20")] = None,
    data: shared.DataPath = None,
    samples: shared.Samples = None,
    input: shared.InputShape = None,
    classes: shared.Classes = None,
    precision: shared.Precision = "fp32",
    execution: shared.Execution = "auto",
    load: shared.Load = "auto",
    on: shared.On = None,
    json: shared.Json = False,
) -> None:
    """Time combinations of workloads, strategies, devices and batches, and write them to a folder."""
    from scalewise.strategies.registry import MEASURED_BY_DEFAULT, strategy_of

    chosen = strategy or list(MEASURED_BY_DEFAULT)
    for name in chosen:
        strategy_of(name)  # refuses a misspelt name before torch is imported
    grid: dict[str, Any] = {
        "devices": whole_numbers("--devices", devices),
        "hosts": whole_numbers("--hosts", hosts),
        "link": [part.strip() for part in link.split(",")] if link is not None else [],
        "batch": whole_numbers("--batch", batch) if batch is not None else None,
        "batch_per_device": None if batch_per_device is None else whole_numbers("--batch-per-device", batch_per_device),
    }
    from scalewise.models.catalogue import check_name
    from scalewise.sweep.stopping_rule import check_limits

    check_usable(out)
    for workload in workloads:
        check_name(workload, input, classes)
    check_limits(protocol, interval, budget, budget_total, epochs)
    check_data(load, data, samples)
    if optimizer is not None:
        check_optimizer(optimizer)
    if on is not None:
        from scalewise.launch.schedulers import run_on

        run_on(on)
        return
    from scalewise.launch.forkserver import load_for_ranks

    if max(grid["devices"]) > 1:
        load_for_ranks()
    from scalewise.cli.shared import show
    from scalewise.formats.store import MEASUREMENTS_FILE
    from scalewise.sweep.measure import measure as verb

    notice = (
        f"--resume: {out} has no measurements; starting a new sweep"
        if resume and not (out / MEASUREMENTS_FILE).exists()
        else ""
    )
    with sweep_bar(notice) as (on_progress, on_cell):
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
        raise RunFailed(f"{count}; the first: {result.failed[0].reason}; repeat failed cells with --resume")


@contextmanager
def sweep_bar(notice: str = "") -> Iterator[tuple[Any, Any]]:
    """Create callbacks for a sweep: a line per finished cell and, in a terminal, a progress bar.

    The notice is printed once the sweep has started; a sweep that is refused does not print it.
    """
    from rich import progress

    from scalewise.core.units import EscapingConsole
    from scalewise.sweep.result import cell_line

    console = EscapingConsole(stderr=True, highlight=False, soft_wrap=True)

    notices = [f"scalewise: {notice}"] if notice else []

    def print_notice() -> None:
        while notices:
            console.print(notices.pop(), markup=False)

    def print_cell(measurement: Measurement) -> None:
        print_notice()
        console.print(cell_line(measurement), markup=False)

    if not sys.stderr.isatty():
        yield None, print_cell
        return
    columns = (
        progress.BarColumn(bar_width=20),
        progress.TextColumn("{task.fields[cells]}"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.description}"),
    )
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0, cells="")

        def update_bar(state: Progress) -> None:
            print_notice()
            bar.update(
                task, completed=state.fraction, cells=f"{state.done}/{state.total} cells", description=state.text
            )

        yield update_bar, print_cell
