"""`scalewise data`."""

from __future__ import annotations

import json as json_format
import sys
from typing import Annotated, Literal

import typer

from scalewise.cli import options


def data(
    name: Annotated[Literal["speech"], typer.Argument(help="Which data to fetch.")],
    json: options.Json = False,
) -> None:
    """Fetch a data set once into your cache: the study's spoken digits (12 MB, checksum verified, resumable)."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from scalewise.data.fetch import fetch_speech
    from scalewise.data.speech import speech_cache

    folder = speech_cache()
    columns = (TextColumn("fetching"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
        bar = progress.add_task(name, total=None)
        count = fetch_speech(folder, on_progress=lambda done, total: progress.update(bar, completed=done, total=total))
    if json:
        print(json_format.dumps({"data": name, "folder": str(folder), "recordings": count}))
    else:
        print(f"{count:,} recordings in {folder}")
