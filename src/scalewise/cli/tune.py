"""`scalewise tune`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalewise.cli import shared
from scalewise.cli.shared import WorkloadName
from scalewise.core.errors import Interrupted, UserError
from scalewise.core.files import check_writable, make_out_folder
from scalewise.core.training_options import DEFAULT_BATCH, check_optimizer

if TYPE_CHECKING:
    from scalewise.tuning.tune import Progress

EXAMPLES = (
    "scalewise tune conv --batch 20",
    "scalewise tune model.py:build --input 3x224x224 --classes 1000 --batch 128 --precision bf16",
)


def tune(
    workload: WorkloadName,
    batch: Annotated[int, typer.Option(help="Batch on the one device.")] = DEFAULT_BATCH,
    precision: shared.Precision = "fp32",
    device_kind: shared.DeviceKind = "auto",
    optimizer: shared.Optimizer = None,
    data: shared.DataPath = None,
    input: shared.InputShape = None,
    classes: shared.Classes = None,
    batches: Annotated[
        bool,
        typer.Option(
            "--batches", help="Also search the largest batch that fits, and the batch at which throughput saturates."
        ),
    ] = False,
    time_limit: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Time of the whole search. After 85 % of it no trial starts, and one that still compiles is stopped.",
        ),
    ] = 240.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again instead of showing the saved result.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write tune.png and tune.json to this folder.", show_default=False),
    ] = None,
    report: shared.ReportFile = None,
    json: shared.Json = False,
) -> None:
    """Find the fastest way to train on one device: memory format, convolutions, CUDA graph, compilation.

    Options that change nothing but rounding are selected; a lower precision is only offered.
    The result is saved; `train --tuned` and `advise` use it.
    """
    if batch < 1:
        raise UserError(f"--batch is {batch}; it must be at least 1")
    if not time_limit > 0:
        raise UserError(f"--time-limit is {time_limit:g}; it must be a number of seconds above 0")
    from scalewise.models.catalogue import check_name

    check_name(workload, input, classes)
    if optimizer:
        check_optimizer(optimizer)
    if out:
        make_out_folder(out)
    if report:
        check_writable(report)
    from scalewise.launch.forkserver import load_for_ranks

    load_for_ranks()
    from scalewise.cli.shared import show
    from scalewise.tuning.tune import tune as verb

    with _bar() as update_bar:
        result = verb(
            workload,
            batch=batch,
            precision=precision,
            device_kind=device_kind,
            optimizer=optimizer,
            data=data,
            input_shape=input,
            classes=classes,
            batches=batches,
            time_limit=time_limit,
            fresh=fresh,
            on_progress=update_bar,
        )
    if out:
        from scalewise.tuning.trial_chart import write_files

        write_files(result, out)
    if report:
        result.write_report(report)
    show(result, json)
    if result.interrupted:
        saved = f" and saved in {result.saved_in}" if result.saved_in else ""
        raise Interrupted(f"interrupted; the finished trials are shown{saved}")


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None] | None]:
    """Show a progress bar in a terminal; yield the callback that updates it, or None if stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as rich_progress
    from rich.console import Console
    from rich.markup import escape

    columns = (
        rich_progress.TextColumn("tuning"),
        rich_progress.BarColumn(),
        rich_progress.TextColumn("{task.completed}/{task.total} trials"),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TextColumn("{task.description}"),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("starting", total=None)

        def update(state: Progress) -> None:
            bars.update(bar, completed=state.done, total=state.total, description=escape(state.text))

        yield update
