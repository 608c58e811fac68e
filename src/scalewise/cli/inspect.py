"""`scalewise list`, `describe`, `profile`, `doctor`, `data` and the commands of clusters."""

from __future__ import annotations

import dataclasses
import json as json_format
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from scalewise.cli import shared
from scalewise.cli.shared import WorkloadName, training_option
from scalewise.core import training_options
from scalewise.core.arguments import whole_numbers
from scalewise.core.errors import UserError
from scalewise.core.files import check_writable
from scalewise.core.training_options import DEFAULT_BATCH, TrainingOptions
from scalewise.hardware.gpus import gpu_named
from scalewise.models.catalogue import check_name

DESCRIBE_EXAMPLES = (
    "scalewise describe unet:width=16",
    "scalewise describe unet:width=16 --gpu h200 --batch 8 --precision bf16 --step-time 0.012",
)
HERE = "here"
"""Name of this machine's device."""

Listing = Literal["strategies", "workloads", "clusters", "gpus", "experiments"]


def listing(
    kind: Annotated[Listing, typer.Argument(help="What to list.")],
    json: shared.Json = False,
) -> None:
    """List strategies, built-in workloads, clusters, GPUs or experiments, with their options."""
    listings = {
        "strategies": _strategies,
        "workloads": _workloads,
        "clusters": cluster_rows,
        "gpus": _gpus,
        "experiments": _experiments,
    }
    rows = listings[kind]()
    if json:
        print(json_format.dumps({kind: rows}, indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    from scalewise.core.units import EscapingConsole

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("name", no_wrap=True)
    # Options are below the description, because a third column would be narrower than their longest words.
    table.add_column("description" + (" and options" if any(map(_options_text, rows)) else ""), overflow="fold")
    for row in rows:
        summary = row["summary"] if row.get("exact", True) else f"{row['summary']} (not exact)"
        table.add_row(row["name"], summary)
        if options := _options_text(row):
            table.add_row("", Text(options, style="dim"))
    EscapingConsole(highlight=False).print(table)


def _options_text(row: dict[str, Any]) -> str:
    """Return 'width=8, norm=none|batch, full (width=64, depth=4)'."""
    choices = row.get("choices", {})
    texts = [f"{key}={choices.get(key, value)}" for key, value in row.get("options", {}).items()]
    for preset, values in row.get("presets", {}).items():
        texts.append(f"{preset} ({', '.join(f'{key}={value}' for key, value in values.items())})")
    return ", ".join(texts)


def _strategies() -> list[dict[str, Any]]:
    from scalewise.strategies.base import choices_of
    from scalewise.strategies.registry import STRATEGIES

    return [
        {
            "name": name,
            "summary": kind.summary,
            "exact": kind().exact,
            "options": dataclasses.asdict(kind()),  # type: ignore[call-overload]
            "choices": choices_of(kind),
        }
        for name, kind in STRATEGIES.items()
    ]


def _workloads() -> list[dict[str, Any]]:
    from scalewise.models.catalogue import CATALOGUE, PUBLISHED

    return [
        {
            "name": name,
            "summary": entry.summary,
            "options": {key: default for key, (default, _) in entry.options.items()},
            "presets": {preset: dict(values) for preset, values in entry.presets.items()},
        }
        for name, entry in CATALOGUE.items()
    ] + [{"name": name, "summary": summary, "options": {}, "presets": {}} for name, summary in PUBLISHED.items()]


def _gpus() -> list[dict[str, Any]]:
    from scalewise.hardware.gpus import gpus

    rows = []
    for key, gpu in gpus().items():
        peaks = {"fp32": gpu.fp32_TFLOPS, "tf32": gpu.tf32_TFLOPS, "fp16": gpu.fp16_TFLOPS, "bf16": gpu.bf16_TFLOPS}
        peaks_text = ", ".join(f"{name} {value:g}" for name, value in peaks.items() if value is not None)
        power = f"{gpu.tdp_W:g} W" if gpu.tdp_W is not None else "power is configured"
        rows.append(
            {
                "name": key,
                "summary": f"{gpu.memory_GB:g} GB, {gpu.memory_GBps:g} GB/s; TFLOPS: {peaks_text}; {power}; "
                f"{gpu.vendor} {gpu.architecture}, {gpu.year}",
                "memory_GB": gpu.memory_GB,
                "memory_GBps": gpu.memory_GBps,
                "peak_TFLOPS": peaks,
                "tdp_W": gpu.tdp_W,
                "source": gpu.source,
                "note": gpu.note,
            }
        )
    return rows


def _experiments() -> list[dict[str, Any]]:
    from scalewise.studies.registry import EXPERIMENTS

    return [{"name": name, "summary": experiment.summary} for name, experiment in EXPERIMENTS.items()]


def describe(
    workload: WorkloadName,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|here",
            help="Also show the roofline of a training step: the seconds that it takes at least on this GPU (see "
            "`scalewise list gpus`) or on this machine's device, and its most expensive operators.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Batch of the roofline.", show_default=str(DEFAULT_BATCH))] = None,
    precision: Annotated[
        training_options.Precision | None,
        training_option("precision", shown_default=TrainingOptions.precision),
    ] = None,
    step_time: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="A measured step: show the fraction of the roofline it reaches.", show_default=False
        ),
    ] = None,
    input: shared.InputShape = None,
    classes: shared.Classes = None,
    json: shared.Json = False,
) -> None:
    """Show the layers of a workload: output shapes, parameters, memory and flops; with --gpu, the least step time."""
    if gpu is None:
        for flag, value in {"--batch": batch, "--precision": precision, "--step-time": step_time}.items():
            if value is not None:
                raise UserError(f"{flag} {value} has an effect only with --gpu; add --gpu NAME")
    if batch is not None and batch < 1:
        raise UserError(f"--batch is {batch}; it must be at least 1")
    if step_time is not None and not 0 < step_time < math.inf:
        raise UserError(f"--step-time is {step_time:g}; it must be a finite number of seconds above 0")
    known_gpu = gpu_named(gpu) if gpu is not None and gpu != HERE else None
    check_name(workload, input, classes)
    from scalewise.cli.shared import show
    from scalewise.models.describe import describe as verb
    from scalewise.models.resolve import resolve

    resolved = resolve(workload, input, classes)
    description = verb(resolved)
    if gpu is not None:
        from scalewise.models.operator_counts import workload_roofline
        from scalewise.probe.contention import limits_of

        limits, peak = limits_of(known_gpu, precision or TrainingOptions.precision)
        roofline = workload_roofline(
            resolved,
            limits,
            batch=batch or DEFAULT_BATCH,
            precision=precision or TrainingOptions.precision,
            peak=peak,
        )
        description = dataclasses.replace(description, roofline=roofline, step_seconds=step_time)
    show(description, json)


def profile(
    workload: WorkloadName,
    batch: Annotated[str, typer.Option(help="Batches to time, separated by commas.")] = "10,20,50,100",
    beside: Annotated[
        str | None,
        typer.Option(
            help="Numbers of devices, separated by commas: also time that many devices at the same time. For "
            "slices of a GPU, which slow each other down; under torchrun on the devices of all hosts.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the profile to this file, for advise --profile.", show_default=False)
    ] = None,
    device_kind: shared.DeviceKind = "auto",
    slice_percent: shared.SlicePercent = None,
    data: shared.DataPath = None,
    samples: shared.Samples = None,
    input: shared.InputShape = None,
    classes: shared.Classes = None,
    precision: shared.Precision = "fp32",
    execution: shared.Execution = "auto",
    load: shared.Load = "auto",
    json: shared.Json = False,
) -> None:
    """Time one device: seconds of data loading, forward, backward and update at each batch."""
    sizes = whole_numbers("--batch", batch)
    counts = whole_numbers("--beside", beside, least=2) if beside is not None else []
    if out:
        check_writable(out)
    check_name(workload, input, classes)
    training_options.check_data(load, data, samples)
    if samples is not None and max(sizes) > samples:
        raise UserError(f"--batch is {max(sizes):,} but there are only {samples:,} samples (--samples)")
    from scalewise.cli.shared import show
    from scalewise.core.units import EscapingConsole, seconds_text
    from scalewise.probe.profile import profile as verb

    request: dict[str, Any] = {
        "device_kind": device_kind,
        "slice_percent": slice_percent,
        "load": load,
        "data": data,
        "samples": samples,
        "input_shape": input,
        "classes": classes,
    }
    with EscapingConsole(stderr=True, quiet=not sys.stderr.isatty()).status("profiling") as status:
        result = verb(
            workload,
            batch=sizes,
            precision=precision,
            execution=execution,
            on_batch=lambda cost: status.update(f"batch {cost.batch}: {seconds_text(cost.seconds)} per step"),
            **request,
        )
        if counts:
            from scalewise.probe.sibling_profiler import with_others

            result = with_others(
                result, workload, counts, on_count=lambda count: status.update(f"{count} devices at once"), **request
            )
    if out:
        result.write(out)
    show(result, json)
    if out and not json:
        print(f"\nwritten to {out}")


def doctor(
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="here|FILE",
            help="Also measure the links of this machine and save it as a cluster: to a file, or (here) for "
            "`scalewise advise --cluster here`.",
            show_default=False,
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(help="Number of devices to measure, with --save.", show_default="all")
    ] = None,
    device_kind: Annotated[
        Literal["auto", "cpu", "cuda", "slice"],
        typer.Option(
            "--device-kind", help="cpu: one core per device. cuda: one GPU per device. slice: devices share one GPU."
        ),
    ] = "auto",
    hosts: Annotated[int, typer.Option(help="Number of emulated hosts whose links are measured.")] = 1,
    link: Annotated[
        str | None,
        typer.Option(help="Bandwidth of the links between emulated hosts: 1gbit, 200mbit.", show_default=False),
    ] = None,
    slice_percent: Annotated[
        int | None, typer.Option(help="Percent of the GPU per slice.", show_default="100 / devices")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Repeat less often: a third of the time, less precise.")
    ] = False,
    on: shared.On = None,
    json: shared.Json = False,
) -> None:
    """Check this machine: devices, memory, torch and backends, and how to install what is missing."""
    from scalewise.cli.shared import show

    if save is None:
        is_given = {"--devices": devices, "--hosts": hosts > 1, "--link": link, "--slice-percent": slice_percent}
        is_given |= {"--on": on, "--quick": quick, "--device-kind": device_kind != "auto"}
        if flags := [flag for flag, value in is_given.items() if value]:
            raise UserError(f"{flags[0]} has an effect only with --save; add --save FILE or --save here")
        from scalewise.probe.doctor import doctor as verb

        show(verb(), json)
        return
    if on is not None:
        from scalewise.launch.schedulers import run_on

        run_on(on)
        return
    from scalewise.launch.forkserver import load_for_ranks

    load_for_ranks()
    from scalewise.cli.shared import progress_lines
    from scalewise.probe.measure_links import measure_links

    with progress_lines("measuring links") as (print_line, _):
        measured = measure_links(
            devices,
            device_kind=device_kind,
            hosts=hosts,
            link=link,
            slice_percent=slice_percent,
            quick=quick,
            save=save,
            on_progress=print_line,
        )
    show(measured.report, json)


def data(
    name: Annotated[Literal["speech"], typer.Argument(help="Data set to download.")],
    json: shared.Json = False,
) -> None:
    """Download a data set into your cache: the study's spoken digits (12 MB, checksum verified, resumable)."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from scalewise.core.units import EscapingConsole
    from scalewise.data.download import fetch_speech
    from scalewise.data.speech import speech_cache

    folder = speech_cache()
    columns = (TextColumn("downloading"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=EscapingConsole(stderr=True), disable=not sys.stderr.isatty(), transient=True
    ) as progress:
        bar = progress.add_task(name, total=None)
        count = fetch_speech(folder, on_progress=lambda done, total: progress.update(bar, completed=done, total=total))
    if json:
        print(json_format.dumps({"data": name, "folder": str(folder), "recordings": count}))
    else:
        print(f"{count:,} recordings in {folder}")


SHOW_EXAMPLES = (
    "scalewise clusters show 8x-a100-nvlink",
    "scalewise clusters show '4 x rtx-4090, 2 hosts, 25gbe' > mine.toml",
)

app = typer.Typer(
    help="Show a cluster as a TOML file, to copy and edit: clusters show NAME.", invoke_without_command=True
)


@app.callback()
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        context.get_help()  # prints it
        raise typer.Exit


@app.command(epilog="Examples:\n\n" + "\n\n".join(SHOW_EXAMPLES))
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="CLUSTER",
            help="A name from `scalewise list clusters`, GPUs as in '4 x rtx-4090' or '8 x b200, 4 hosts, "
            "infiniband-400', or a TOML file.",
        ),
    ],
    json: shared.Json = False,
) -> None:
    """Print a cluster as a complete TOML file. Redirect it to a file, edit it, and give the file as --cluster."""
    from scalewise.hardware.catalogue import cluster_of
    from scalewise.hardware.cluster import cluster_template

    cluster = cluster_of(name)
    if json:
        print(json_format.dumps(asdict(cluster), indent=2))
    else:
        print(cluster_template(cluster), end="")


def cluster_rows() -> list[dict[str, Any]]:
    """Return the clusters of the catalogue for `scalewise list clusters`."""
    from scalewise.hardware.catalogue import catalogue

    return [
        {
            "name": cluster.name,
            "summary": cluster.summary,
            "devices": cluster.size,
            "device": cluster.devices[0].name,
            "links": {link.between: f"{link.kind}, {link.all_ports_GBps:g} GB/s" for link in cluster.links},
            "price_per_hour": cluster.price_per_hour,
        }
        for cluster in catalogue().values()
    ]
