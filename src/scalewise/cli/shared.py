"""Options that several commands have, and their output on the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from scalewise.core import training_options
from scalewise.core.training_options import HELP, flag_of
from scalewise.core.units import EscapingConsole, Printable

if TYPE_CHECKING:
    from scalewise.training.results import Report


def option(panel: str, *names: str, **more: Any) -> Any:
    """Create an option in a help panel; a default of None is not shown."""
    return typer.Option(*names, rich_help_panel=panel, **{"show_default": True, **more})


def training_option(name: str, *, shown_default: str | None = None) -> Any:
    """Create the option with the flag and help text of TrainingOptions."""
    return _described(name, HELP[name].text, shown_default)


def training_option_list(name: str, *, shown_default: str | None = None) -> Any:
    """Create the option for a comma-separated list of values."""
    return _described(name, f"{HELP[name].text.rstrip('.')}; several values separated by commas.", shown_default)


def _described(name: str, text: str, shown_default: str | None) -> Any:
    described = HELP[name]
    shown = shown_default or described.shown_default
    return option(
        described.panel,
        flag_of(name),
        help=text,
        metavar=described.metavar,
        **({"show_default": shown} if shown else {}),
    )


WorkloadName = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="Built-in name with options (linear, unet:width=16; see `scalewise list workloads`), "
        "path/to/file.py:function, package.module:function, or hf:NAME.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")]

ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write the result as one HTML page, which needs no network.",
        show_default=False,
    ),
]

On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="SCHEDULER:OPTIONS",
        rich_help_panel=training_options.DEVICES,
        help="Run on a cluster: slurm:partition=gpu,nodes=2,gpus_per_node=4,time=60 or ray:address=auto,nodes=2 submit "
        "and follow the command; kubernetes:image=NAME,nodes=2 and sky:nodes=2 write a manifest.",
        show_default=False,
    ),
]

DataPath = Annotated[Path | None, training_option("data")]
Samples = Annotated[int | None, training_option("samples")]
InputShape = Annotated[str | None, training_option("input_shape")]
Classes = Annotated[int | None, training_option("classes")]
DeviceKind = Annotated[training_options.DeviceKind, training_option("device_kind")]
SlicePercent = Annotated[int | None, training_option("slice_percent")]
CoresPerDevice = Annotated[int, training_option("cores_per_device")]
Timeout = Annotated[float, training_option("timeout_seconds")]
Optimizer = Annotated[str | None, training_option("optimizer")]
Precision = Annotated[training_options.Precision, training_option("precision")]
GivenPrecision = Annotated[
    training_options.GivenPrecision,
    typer.Option(
        "--precision",
        rich_help_panel=training_options.COMPUTATION,
        help="Precision of matrix multiplications. bf16 and fp16 are autocast: weights and gradients stay fp32. Given "
        "step times (--step-time, --measured) may also be of bf16-weights or fp16-weights: gradients of half the size.",
    ),
]
Execution = Annotated[training_options.Execution, training_option("execution")]
CompileMode = Annotated[training_options.CompileMode, training_option("compile_mode")]
MemoryFormat = Annotated[training_options.MemoryFormat, training_option("memory_format")]
Convolutions = Annotated[training_options.Convolutions, training_option("convolutions")]
Load = Annotated[str, training_option("load")]


def show(result: Printable, as_json: bool, file: TextIO | None = None) -> None:
    """Print a result as JSON or as text."""
    if as_json:
        json.dump(result.to_json(), file or sys.stdout, indent=2)
        print(file=file)
    else:
        EscapingConsole(highlight=False, file=file).print(result)


def show_surely(result: Printable, as_json: bool) -> None:
    """Print a result that took long to get. If stdout cannot be written, print it on stderr and raise the error."""
    try:
        show(result, as_json)
        sys.stdout.flush()
    except OSError:
        show(result, as_json, sys.stderr)
        raise


@contextmanager
def training_bar(batch: int) -> Iterator[Callable[[Report], None] | None]:
    """Show a progress bar in a terminal; yield the callback that updates it, or None if stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[steps]}"),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=EscapingConsole(stderr=True), transient=True) as progress:
        bar = progress.add_task("starting", total=None, steps="", rate="", loss="")

        def update_bar(report: Report) -> None:
            speed = progress.tasks[0].speed
            progress.update(
                bar,
                description=f"epoch {report.epoch + 1}",
                completed=report.steps_done,
                total=report.steps,
                steps=f"{report.steps_done:,}/{report.steps:,} steps",
                rate=f"{speed * batch:,.0f} samples/s" if speed else "",
            )
            if report.loss is not None:
                progress.update(bar, loss=f"loss {report.loss:.3f}")

        yield update_bar


@contextmanager
def progress_lines(task: str) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Yield two callbacks: one prints a line on stderr, the other updates the text of a spinner in a terminal."""
    console = EscapingConsole(stderr=True, highlight=False)
    if not sys.stderr.isatty():
        yield lambda line: console.print(line, markup=False, soft_wrap=True), lambda _: None
        return
    with console.status(task) as status:

        def print_line(line: str) -> None:
            console.print(line, style="dim", markup=False, soft_wrap=True)
            status.update(task)

        yield print_line, lambda detail: status.update(escape(f"{task}: {detail}"))


@contextmanager
def spinner(task: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner in a terminal; yield the callback that updates its text."""
    with EscapingConsole(stderr=True, quiet=not sys.stderr.isatty()).status(task) as status:
        yield status.update


def warn_of_oversubscription(
    devices: int, device_kind: str, hosts: int, link: str | None, cores_per_device: int, servers: int
) -> None:
    """Warn on stderr if devices share cores. Called before ranks start, which takes long if there are many."""
    from scalewise.launch.cpu_cores import allowed_cores
    from scalewise.launch.devices import settle
    from scalewise.launch.placement import Placement, under_torchrun

    if devices == 1 or under_torchrun():
        return
    placement = Placement(devices, device_kind, hosts, link, cores_per_device=cores_per_device, servers=servers)
    if settle(placement).oversubscribed:
        cores = len(allowed_cores())
        shared = f"{devices} cpu devices share {cores} core{'s' * (cores > 1)}"
        print(f"scalewise: {shared}, which makes steps slow", file=sys.stderr)
