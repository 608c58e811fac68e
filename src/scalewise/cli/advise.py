"""`scalewise advise`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from scalewise.cli import shared
from scalewise.core.arguments import whole_numbers
from scalewise.core.errors import UserError
from scalewise.core.files import check_writable

EXAMPLES = (
    "scalewise advise linear --cluster 4x-gtx-1080-ti --batch 100",
    "scalewise advise model.py:build --input 3x224x224 --classes 10 --batch 32",
    "scalewise advise ResNet-50 --step-time 0.062@32 --cluster 8x-v100-nvlink",
    "scalewise advise --profile gpu.json --cluster '2 x t4, 8 hosts, 25gbe'",
    "scalewise advise hf:gpt2 --tokens 1e9 --deadline 24h --cluster '1 x h100' --cluster '4 x rtx-4090'",
)
"""A built-in workload on a catalogued cluster, an own model here, a published model, a profile, a comparison."""

CLUSTERS = "Hardware"
GRID = "Strategies and batches to compare"
ONE_DEVICE = "Step time of one device"
BUDGET = "Amount of training, time and cost"
"""Panels of --help."""

_Value = TypeVar("_Value")


def advise(
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="[WORKLOAD]",
            help="Model: built-in (linear, unet:width=16), published (resnet50, bert-base; see "
            "`scalewise list workloads`), path/to/file.py:function, package.module:function, or hf:NAME. Not needed "
            "with --profile.",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=CLUSTERS,
            help="Cluster to predict: a name from `scalewise list clusters`, a TOML file, "
            "'4 x rtx-4090', '8 x a100-nvlink, 4 hosts, 100gbe', or here (this machine). Repeat the option to compare.",
            show_default="here",
        ),
    ] = None,
    profile: Annotated[
        list[Path] | None,
        typer.Option(
            rich_help_panel=ONE_DEVICE,
            help="Profile of one device, written by `scalewise profile`.",
            show_default=False,
        ),
    ] = None,
    step_time: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=ONE_DEVICE,
            metavar="SECONDS@BATCH",
            help="One measured step of one device: 0.062@32 is 62 ms at batch 32. Repeat the option for several "
            "batches.",
            show_default=False,
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=ONE_DEVICE,
            metavar="FILE.csv",
            help="Measured steps with the columns model, devices, batch_per_device and step_seconds or "
            "samples_per_second (optional: strategy, precision, hosts). Rows of one device "
            "are the profile; the other rows, also of other models, fit the bandwidth of the links.",
            show_default=False,
        ),
    ] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=GRID,
            help="Parallelism strategy; see `scalewise list strategies`. Repeat the option for several.",
            show_default="all",
        ),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=GRID, help="Numbers of devices, separated by commas.", show_default="powers of two, and all"
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=GRID,
            help="Global batches, separated by commas. The verdict is about the first.",
            show_default=False,
        ),
    ] = None,
    batch_per_device: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=GRID,
            help="Batch per device, instead of --batch: the verdict is then about weak scaling.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(rich_help_panel=BUDGET, help="Samples per epoch.", show_default="from the profile")
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=BUDGET, help="Epochs of the whole training, for its time and cost.", show_default=False
        ),
    ] = None,
    tokens: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=BUDGET,
            help="Tokens of the whole training of a language model, such as 1e9.",
            show_default=False,
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=BUDGET,
            metavar="TIME",
            help="Longest time of the whole training: 24h, 90min, 2d.",
            show_default=False,
        ),
    ] = None,
    max_cost: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=BUDGET,
            metavar="USD",
            help="Highest cost of the whole training in US dollars.",
            show_default=False,
        ),
    ] = None,
    price: Annotated[
        list[float] | None,
        typer.Option(
            rich_help_panel=BUDGET,
            metavar="USD",
            help="US dollars per hour of the whole cluster; repeat it for every --cluster, in the same order.",
            show_default="the cheapest cloud's",
        ),
    ] = None,
    spot: Annotated[
        bool, typer.Option("--spot", rich_help_panel=BUDGET, help="Use prices of spot (interruptible) instances.")
    ] = False,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=CLUSTERS,
            metavar="DIR",
            help="Fit the bandwidth of the links to a folder that `scalewise measure` wrote on that cluster. One cell "
            "on two devices is enough.",
            show_default=False,
        ),
    ] = None,
    save_profile: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=ONE_DEVICE,
            metavar="FILE",
            help="Write the profile of one device to this file.",
            show_default=False,
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", rich_help_panel=ONE_DEVICE, help="Profile again instead of reading the cached profile."
        ),
    ] = False,
    data: shared.DataPath = None,
    input: shared.InputShape = None,
    classes: shared.Classes = None,
    precision: shared.GivenPrecision = "fp32",
    load: shared.Load = "auto",
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write the simulated step of the best row as a timeline that opens in Perfetto.", show_default=False
        ),
    ] = None,
    report: shared.ReportFile = None,
    json: shared.Json = False,
) -> None:
    """Predict whether more devices would train faster, with which strategy, and why."""
    if batch and batch_per_device is not None:
        raise UserError("both --batch and --batch-per-device are given; give one of them")
    for path in (save_profile, trace, report):
        if path:
            check_writable(path)
    one_profile = _single_value("--profile", profile)
    from scalewise.advice.advise import advise as verb
    from scalewise.cli.shared import show, spinner

    with spinner("profiling one device") as update_status:
        result = verb(
            workload,
            profile=one_profile,
            step_time=step_time or None,
            measured=measured,
            cluster=cluster,
            strategy=strategy or (),
            devices=whole_numbers("--devices", devices) if devices else (),
            batch=whole_numbers("--batch", batch) if batch else (),
            batch_per_device=batch_per_device,
            samples=samples,
            epochs=epochs,
            tokens=tokens,
            deadline=deadline,
            max_cost=max_cost,
            price=price or (),
            spot=spot,
            calibrate=calibrate,
            save_profile=save_profile,
            fresh=fresh,
            precision=precision,
            load=load,
            data=data,
            input_shape=input,
            classes=classes,
            on_progress=update_status,
        )
    if trace:
        result.write_trace(trace)
    if report:
        result.write_report(report)
    show(result, json)


def _single_value(flag: str, values: Sequence[_Value] | None) -> _Value | None:
    """Return the value of an option that may be given once, or raise UserError."""
    if not values:
        return None
    if len(values) > 1:
        given = ", ".join(f"'{value}'" for value in values)
        raise UserError(f"{flag} is given {len(values)} times ({given}); give it once")
    return values[0]
