"""`scalewise advise`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewise.atomic import check_writable
from scalewise.cli import options
from scalewise.cli.lists import whole_numbers
from scalewise.errors import UserError

EXAMPLES = (
    "scalewise advise linear --cluster 4x-gtx-1080-ti --batch 100",
    "scalewise advise model.py:build --input 3x224x224 --classes 10 --batch 32",
    "scalewise advise ResNet-50 --step-time 0.062@32 --cluster 8x-v100-nvlink",
    "scalewise advise --profile gpu.json --cluster '2 x t4, 8 hosts, 25gbe'",
)
"""The study's machine, one's own model here, someone's figure on a cluster that one has not, and one's own profile."""


def advise(
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="[WORKLOAD]",
            help="As for train, or a published model beside --step-time (ResNet-50, BERT base).",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="here, a name of `scalewise list clusters`, a TOML file, or '8 x a100-nvlink, 4 hosts, 100gbe'.",
            show_default="here: this machine",
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="What one device costs, as `scalewise profile` writes it.", show_default=False)
    ] = None,
    step_time: Annotated[
        str | None,
        typer.Option(metavar="SECONDS@BATCH", help="One measured step of one device: 0.062@32.", show_default=False),
    ] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(help="Which to look at; repeat it.", show_default="all there are")
    ] = None,
    devices: Annotated[
        str | None, typer.Option(help="Counts, a comma list.", show_default="1, 2, 4, ... and all")
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="Global batches, a comma list; the verdict is on the first.", show_default=False)
    ] = None,
    batch_per_device: Annotated[
        int | None,
        typer.Option(
            help="The batch of every device instead; the verdict is against one that has as many.", show_default=False
        ),
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Samples per epoch.", show_default="the profile's")] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Fit the links to what `scalewise measure` timed there; one cell on two devices is enough.",
            show_default=False,
        ),
    ] = None,
    save_profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what one device costs.", show_default=False)
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Profile again, whatever is kept from before.")] = False,
    data: options.DataPath = None,
    input: options.InputShape = None,
    classes: options.Classes = None,
    precision: options.Precision = "fp32",
    load: options.Load = "auto",
    trace: Annotated[
        Path | None, typer.Option(help="Write the best row's simulated step as a Chrome trace.", show_default=False)
    ] = None,
    json: options.Json = False,
) -> None:
    """Predict strategies x devices x batches on a cluster from one device, and say whether more would be faster."""
    if batch and batch_per_device is not None:
        raise UserError("give --batch or --batch-per-device, not both")
    for flag, value in (("--samples", samples), ("--batch-per-device", batch_per_device)):
        if value is not None and value < 1:
            raise UserError(f"{flag} is {value}; it must be 1 or more")
    for path in (save_profile, trace):
        if path:
            check_writable(path)
    from scalewise.cli.output import show
    from scalewise.cli.progress import spinning
    from scalewise.verbs.advise import advise as verb

    with spinning("profiling one device") as tell:
        result = verb(
            workload,
            profile=profile,
            step_time=step_time,
            cluster=cluster,
            strategy=strategy or (),
            devices=whole_numbers("--devices", devices) if devices else (),
            batch=whole_numbers("--batch", batch) if batch else (),
            batch_per_device=batch_per_device,
            samples=samples,
            calibrate=calibrate,
            save_profile=save_profile,
            fresh=fresh,
            precision=precision,
            load=load,
            data=data,
            input_shape=input,
            classes=classes,
            on_progress=tell,
        )
    if trace:
        result.write_trace(trace)
    show(result, json)
