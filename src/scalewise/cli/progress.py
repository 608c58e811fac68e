"""Progress on stderr: a bar for people, nothing when piped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from scalewise.training.outcome import Report


@contextmanager
def training_bar(batch: int) -> Iterator[Callable[[Report], None] | None]:
    """A callback for the reports of a run: steps, samples per second, loss, time left."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[steps]}"),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("starting", total=None, steps="", rate="", loss="")

        def told(report: Report) -> None:
            speed = progress.tasks[0].speed
            progress.update(
                bar,
                description=f"epoch {report.epoch + 1}",
                completed=report.steps_done,
                total=report.steps,
                steps=f"{report.steps_done:,}/{report.steps:,} steps",
                rate=f"{speed * batch:,.0f} samples/s" if speed else "",
            )
            if report.loss is not None:
                progress.update(bar, loss=f"loss {report.loss:.3f}")

        yield told


@contextmanager
def telling(what: str) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Lines about work under way: for people above a spinner, for a log file as they are. The second callback takes
    what is done just now: it stands beside the spinner, and in no log file."""
    console = Console(stderr=True, highlight=False)
    if not sys.stderr.isatty():
        yield lambda line: console.print(line, markup=False, soft_wrap=True), lambda _: None
        return
    with console.status(what) as status:

        def tell(line: str) -> None:
            console.print(line, style="dim", markup=False, soft_wrap=True)
            status.update(what)

        yield tell, lambda now: status.update(escape(f"{what}: {now}"))


@contextmanager
def spinning(what: str) -> Iterator[Callable[[str], None]]:
    """What has just come to pass, beside a spinner; nothing when piped."""
    with Console(stderr=True, quiet=not sys.stderr.isatty()).status(what) as status:
        yield status.update


def warn_of_oversubscription(
    devices: int, device_kind: str, hosts: int, link: str | None, cores_per_device: int, servers: int
) -> None:
    """Before ranks start, which takes long when there are many; what cannot be run at all is refused instead."""
    from scalewise.session.cores import allowed_cores
    from scalewise.session.devices import settle
    from scalewise.session.placement import Placement
    from scalewise.session.torchrun import under_torchrun

    if devices == 1 or under_torchrun():
        return
    placement = Placement(devices, device_kind, hosts, link, cores_per_device=cores_per_device, servers=servers)
    if settle(placement).oversubscribed:
        cores = len(allowed_cores())
        shared = f"{devices} cpu devices share {cores} core{'s' * (cores > 1)}"
        print(f"scalewise: {shared}: expect slow steps", file=sys.stderr)
