"""`scalewise report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewise.cli import options

EXAMPLES = ("scalewise report sweep", "scalewise report --published --out study")


def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="DIR...", help="Folders with measurements, as `measure` writes them.", show_default=False
        ),
    ] = None,
    published: Annotated[
        bool,
        typer.Option("--published", help="Draw the study's 96 published cells, with the folders if any are named."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where figures and findings go.", show_default="the first folder")
    ] = None,
    json: options.Json = False,
) -> None:
    """Draw the figures of folders of measurements and write down what they show, in DIR/findings.md.

    Runs of different machines are read together and kept apart: each is compared with its own single device.
    """
    from scalewise.cli.output import show
    from scalewise.verbs.report import report as verb

    show(verb(*(folders or []), out=out, published=published), json)
