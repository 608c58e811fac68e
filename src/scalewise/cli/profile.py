"""`scalewise profile`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from scalewise.atomic import check_writable
from scalewise.cli import options
from scalewise.cli.lists import whole_numbers
from scalewise.cli.options import WorkloadName


def profile(
    workload: WorkloadName,
    batch: Annotated[str, typer.Option(help="Per-device batches, a comma list.")] = "10,20,50,100",
    beside: Annotated[
        str | None,
        typer.Option(
            help="Numbers of devices, a comma list: as many are timed at once, too, meeting in every step as in "
            "training. For slices of a GPU, whose siblings slow them down.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the profile to this file.", show_default=False)] = None,
    device_kind: options.DeviceKind = "auto",
    slice_percent: options.SlicePercent = None,
    data: options.DataPath = None,
    samples: options.Samples = None,
    input: options.InputShape = None,
    classes: options.Classes = None,
    precision: options.Precision = "fp32",
    execution: options.Execution = "auto",
    load: options.Load = "auto",
    json: options.Json = False,
) -> None:
    """Time one device on a workload: seconds of load, forward, backward and update at each batch."""
    sizes = whole_numbers("--batch", batch)
    counts = whole_numbers("--beside", beside, least=2) if beside is not None else []
    if out:
        check_writable(out)
    from rich.console import Console

    from scalewise.cli.output import show
    from scalewise.results.units import seconds_text
    from scalewise.verbs.profile import profile as verb

    asked: dict[str, Any] = {
        "device_kind": device_kind,
        "slice_percent": slice_percent,
        "load": load,
        "data": data,
        "samples": samples,
        "input_shape": input,
        "classes": classes,
    }
    with Console(stderr=True, quiet=not sys.stderr.isatty()).status("profiling") as status:
        result = verb(
            workload,
            batch=sizes,
            precision=precision,
            execution=execution,
            on_batch=lambda cost: status.update(f"batch {cost.batch}: {seconds_text(cost.seconds)} per step; next"),
            **asked,
        )
        if counts:
            from scalewise.verbs.in_step import with_others

            result = with_others(
                result, workload, counts, on_count=lambda count: status.update(f"{count} at once"), **asked
            )
    if out:
        result.write(out)
    show(result, json)
    if out and not json:
        print(f"\nwritten to {out}")
