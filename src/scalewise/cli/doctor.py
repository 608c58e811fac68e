"""`scalewise doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from scalewise.cli import options
from scalewise.errors import UserError


def doctor(
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="here|FILE",
            help="Measure the links of this machine too, and write it as a cluster: to a file, or where "
            "`advise --cluster here` finds it.",
            show_default=False,
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(help="So many at the most, with --save.", show_default="all there are")
    ] = None,
    device_kind: Annotated[
        Literal["auto", "cpu", "cuda", "slice"],
        typer.Option("--device-kind", help="cpu: a core per device. cuda: a GPU per device. slice: parts of one GPU."),
    ] = "auto",
    hosts: Annotated[int, typer.Option(help="Rehearse so many hosts and measure the links between them.")] = 1,
    link: Annotated[str | None, typer.Option(help="Speed of those links: 1gbit, 200mbit.", show_default=False)] = None,
    slice_percent: Annotated[
        int | None, typer.Option(help="Share of the GPU per slice.", show_default="100 / devices")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer repeats: a third of the time, noisier figures.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show what this machine can do: devices, memory, torch, backends; what is missing, and how to get it."""
    from scalewise.cli.output import show

    if save is None:
        asked = {"--devices": devices, "--hosts": hosts > 1, "--link": link, "--slice-percent": slice_percent}
        asked |= {"--quick": quick, "--device-kind": device_kind != "auto"}
        if given := [flag for flag, value in asked.items() if value]:
            raise UserError(f"{given[0]} says how to measure links; add --save FILE, or --save here")
        from scalewise.verbs.doctor import doctor as verb

        show(verb(), json)
        return
    from scalewise.session.preload import load_for_ranks

    load_for_ranks()
    from scalewise.cli.progress import telling
    from scalewise.verbs.links import measure_links

    with telling("measuring links") as (tell, _):
        here = measure_links(
            devices,
            device_kind=device_kind,
            hosts=hosts,
            link=link,
            slice_percent=slice_percent,
            quick=quick,
            save=save,
            on_progress=tell,
        )
    show(here.report, json)
