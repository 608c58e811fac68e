"""`scalewise reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scalewise.atomic import make_out_folder
from scalewise.cli import options
from scalewise.cli.lists import whole_numbers
from scalewise.errors import RunFailed, UserError
from scalewise.experiments.registry import EXPERIMENTS
from scalewise.spec import unknown


def reproduce(
    experiment: Annotated[
        str, typer.Argument(help="Which; see `scalewise list experiments`.", metavar="EXPERIMENT", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder for measurements, figures and findings.", show_default=False)],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cells and steps: minutes instead of hours.")] = False,
    device_kind: options.DeviceKind = "auto",
    seed: Annotated[
        str | None,
        typer.Option(help="Of sync-vs-async: a comma list; it is run with each, and judged by all of them."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Run one of the documents' experiments on this machine, draw it, and say which of its findings hold here."""
    if experiment not in EXPERIMENTS:
        raise unknown("experiment", experiment, EXPERIMENTS)
    chosen = EXPERIMENTS[experiment]
    if device_kind != "auto" and not chosen.on_any_kind:
        raise UserError(f"experiment '{experiment}' chooses its devices itself; leave --device-kind {device_kind} out")
    if seed is not None and not chosen.takes_seeds:
        raise UserError(f"experiment '{experiment}' has its seeds fixed; leave --seed {seed} out")
    given: dict[str, Any] = {"device_kind": device_kind} if chosen.on_any_kind else {}
    if seed is not None:
        given["seeds"] = list(dict.fromkeys(whole_numbers("--seed", seed, least=0)))
    make_out_folder(out)
    from scalewise.cli.output import show
    from scalewise.cli.progress import telling

    with telling(experiment) as (tell, now):
        if chosen.shows_progress:
            given["on_progress"] = lambda cells: now(f"{cells.done}/{cells.total} cells, {cells.text}")
        result = chosen.load()(out, quick, tell, **given)
    show(result, json)
    if result.failed:
        raise RunFailed(f"{result.failed} of the experiment's runs did not come through; see {out}")
