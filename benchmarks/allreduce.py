"""Scalewise's ring all-reduce compared with gloo's all-reduce, on the same ranks in the same run.

    python benchmarks/allreduce.py                          # 2 and 4 CPU ranks, 4 KB to 48 MB
    python benchmarks/allreduce.py --hosts 2 --link 1gbit   # 48 MB between two emulated hosts, in percent of the link

Calls of the two alternate, with a barrier before each. A call lasts from the last rank's start to the last rank's end.
Bandwidth is the tensor's bytes per second. A ratio above 1 means that Scalewise is faster. The result is judged by the
medians. The lower quartile is shown for busy machines. Between two ranks it is less reliable, because calls are faster
or slower depending on whether the threads are awake.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor

from scalewise.core.units import bytes_text, seconds_text
from scalewise.launch.devices import cpu_name
from scalewise.launch.emulated_hosts import parse_link
from scalewise.launch.placement import Placement
from scalewise.launch.session import Session
from scalewise.launch.worker import Worker
from scalewise.runtime.ring_all_reduce import RingAllReduce

KB, MB = 2**10, 2**20
SIZES_BYTES = [4 * KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 48 * MB]
JUDGED_FROM_BYTES = 4 * MB
LEAST_RATIO = 0.9
LEAST_LINE_PERCENT = 90
WARM_UP = 3
QUIET_LOAD = 0.3


@dataclass(frozen=True)
class Row:
    """One tensor size on a number of ranks. Seconds are (lower quartile, median)."""

    ranks: int
    bytes: int
    ours_seconds: tuple[float, float]
    gloo_seconds: tuple[float, float]
    line_seconds: float | None
    """Seconds in which the link transfers the bytes that a rank sends; None on loopback."""

    @property
    def ratios(self) -> tuple[float, float]:
        (ours_low, ours_median), (gloo_low, gloo_median) = self.ours_seconds, self.gloo_seconds
        return gloo_low / ours_low, gloo_median / ours_median

    @property
    def line_percent(self) -> float | None:
        return None if self.line_seconds is None else 100 * self.line_seconds / self.ours_seconds[1]

    @property
    def reached(self) -> bool:
        if self.line_percent is not None:
            return self.line_percent >= LEAST_LINE_PERCENT
        return self.bytes < JUDGED_FROM_BYTES or self.ratios[1] >= LEAST_RATIO


def both(_worker: Worker, size_bytes: int, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Start and end of every call on this rank, by a clock that all ranks share; warm-up calls are only verified."""
    flat = torch.empty(size_bytes // 4)
    calls: dict[str, Callable[[Tensor], object]] = {"ours": RingAllReduce(), "gloo": dist.all_reduce}
    spans: dict[str, list[tuple[float, float]]] = {which: [] for which in calls}
    for repeat in range(-WARM_UP, repeats):
        for which, call in calls.items():
            flat.fill_(1.0)
            dist.barrier()  # otherwise ranks would start a call as far apart as the previous call left them
            started = perf_counter()
            call(flat)
            ended = perf_counter()
            if repeat >= 0:
                spans[which].append((started, ended))
            elif not torch.all(flat == dist.get_world_size()):
                raise RuntimeError(f"the sum of {which} is wrong")
    return spans


def measure(session: Session, size_bytes: int, repeats: int) -> Row:
    by_rank = session.run(both, size_bytes, repeats)
    low_and_median = {}
    for which in ("ours", "gloo"):
        calls = zip(*(spans[which] for spans in by_rank), strict=True)
        seconds = [max(ended for _, ended in call) - max(started for started, _ in call) for call in calls]
        low_and_median[which] = (sorted(seconds)[len(seconds) // 4], median(seconds))
    ranks, link = session.placement.devices, session.placement.link
    sent_bytes = 2 * size_bytes * (ranks - 1) / ranks
    line_seconds = None if link is None else sent_bytes * 8 / parse_link(link)
    return Row(ranks, size_bytes, low_and_median["ours"], low_and_median["gloo"], line_seconds)


def verdict(row: Row) -> str:
    """Describe the ratio of the medians: '12 % faster', '2.4 times as fast'."""
    ratio, percent = row.ratios[1], 100 * abs(row.ratios[1] - 1)
    if percent < 1:
        return "as fast"
    if ratio > 2:
        return f"{ratio:.1f} times as fast"
    return f"{percent:.0f} % {'faster' if ratio > 1 else 'slower'}"


def show(console: Console, rows: list[Row]) -> None:
    table = Table(box=None, header_style="dim")
    titles = [
        "ranks",
        "size",
        "quartile: ring MB/s",
        "gloo MB/s",
        "ratio",
        "median: ring MB/s",
        "gloo MB/s",
        "ratio",
        "ring is",
        "of the link",
    ]
    for title in titles if rows[0].line_seconds is not None else titles[:-1]:
        table.add_column(title, justify="right")
    for row in rows:
        cells = [str(row.ranks), bytes_text(row.bytes)]
        for position in (0, 1):
            pair = (row.ours_seconds[position], row.gloo_seconds[position])
            cells += [f"{row.bytes / seconds / 1e6:,.1f}" for seconds in pair] + [f"{row.ratios[position]:.2f}"]
        cells.append(verdict(row))
        if row.line_seconds is not None:
            of_gloo = 100 * row.line_seconds / row.gloo_seconds[1]
            cells.append(f"{row.line_percent:.1f} % (gloo {of_gloo:.1f} %)")
        table.add_row(*cells, style=None if row.reached else "red")
    console.print(table)


def conclude(console: Console, rows: list[Row]) -> None:
    if rows[0].line_seconds is not None:
        worst = min(rows, key=lambda row: row.line_percent or 0)
        console.print(
            f"{bytes_text(worst.bytes)} took {seconds_text(worst.ours_seconds[1])}, the link alone needs "
            f"{seconds_text(worst.line_seconds or 0)}: {worst.line_percent:.1f} % of its bandwidth "
            f"(target: at least {LEAST_LINE_PERCENT} %)"
        )
        return
    if judged := [row for row in rows if row.bytes >= JUDGED_FROM_BYTES]:
        worst, best = (choose(judged, key=lambda row: row.ratios[1]) for choose in (min, max))
        console.print(
            f"from {bytes_text(JUDGED_FROM_BYTES)} on, the ring has {worst.ratios[1]:.2f} to {best.ratios[1]:.2f} "
            f"times gloo's bandwidth (target: at least {LEAST_RATIO}); lowest at {bytes_text(worst.bytes)} on "
            f"{worst.ranks} ranks"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", help="comma-separated numbers of ranks; default 2,4, or the number of hosts")
    parser.add_argument("--size-KB", help="comma-separated sizes; default 4 to 49152 (48 MB), between hosts 49152 only")
    parser.add_argument("--repeats", type=int, help="default 60, between hosts 10; five times as many up to 4 MB")
    parser.add_argument("--hosts", type=int, default=1, help="emulated hosts, connected by --link")
    parser.add_argument("--link", help="bandwidth of the links between hosts, for example 1gbit")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    shaped = options.hosts > 1
    devices = [int(count) for count in (options.devices or (str(options.hosts) if shaped else "2,4")).split(",")]
    sizes = (
        [int(size) * KB for size in options.size_KB.split(",")]
        if options.size_KB
        else SIZES_BYTES[-1 if shaped else 0 :]
    )
    repeats = options.repeats or (10 if shaped else 60)
    console = Console(width=130)
    load = os.getloadavg()[0]
    console.print(f"{os.cpu_count()} cores of {cpu_name()}, torch {torch.__version__}; load before the run {load:.2f}")
    if load > QUIET_LOAD:
        console.print("[yellow]the machine is busy: bandwidths are too low and ratios are uncertain[/yellow]")
    rows = []
    for count in devices:
        with Session(Placement(count, "cpu", options.hosts, options.link)) as session:
            if session.placement.oversubscribed:
                console.print(f"[yellow]{count} ranks share {os.cpu_count()} cores[/yellow]")
            rows += [measure(session, size, repeats * (1 if size > JUDGED_FROM_BYTES else 5)) for size in sizes]
    show(console, rows)
    conclude(console, rows)
    if options.json:
        figures = [asdict(row) | {"ratios": row.ratios, "line_percent": row.line_percent} for row in rows]
        machine = {"cpu": cpu_name(), "torch": torch.__version__, "load": load, "repeats": repeats}
        options.json.write_text(json.dumps(machine | {"rows": figures}, indent=2))


if __name__ == "__main__":
    main()
