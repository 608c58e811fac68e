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
            metavar="[TABLE]...",
            help="stevens, tensorflow, t4, small; all of them if none is named.",
            show_default=False,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Predict published figures from their one-device rows, and print how far off that is, naive rules beside it."""
    from rich.console import Console

    from scalewise.cli.output import show
    from scalewise.verbs.validate import TABLES
    from scalewise.verbs.validate import validate as verb

    with Console(stderr=True, quiet=not sys.stderr.isatty()).status("predicting") as status:
        result = verb(table or TABLES, on_table=lambda name: status.update(f"predicting {name}"))
    show(result, json)
