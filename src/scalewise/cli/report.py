"""`scalewise report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewise.cli import options


def report(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder with measurements, as `measure` writes it.", show_default=False),
    ],
    json: options.Json = False,
) -> None:
    """Draw the figures of a folder of measurements and write down what they show, in DIR/findings.md."""
    from scalewise.cli.output import show
    from scalewise.verbs.report import report as verb

    show(verb(folder), json)
