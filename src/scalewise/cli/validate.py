"""`scalewise validate`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from scalewise.cli import options


def validate(
    table: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE|DIR]...",
            help="stevens, tensorflow, t4, small, or a folder that `scalewise measure` filled; all tables if none is "
            "named.",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="What DIR was measured on, as for advise: its links are then taken from there.",
            show_default="links fitted on other cells",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Predict measured figures, published or your own, from one-device rows: how far off is that, and naive rules?"""
    from rich.console import Console

    from scalewise.cli.output import show
    from scalewise.verbs.validate import TABLES
    from scalewise.verbs.validate import validate as verb

    with Console(stderr=True, quiet=not sys.stderr.isatty()).status("predicting") as status:
        result = verb(table or TABLES, cluster, on_table=lambda name: status.update(f"predicting {name}"))
    show(result, json)
