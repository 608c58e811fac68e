"""`measure --protocol quick` beside the study's own protocol: the same step times, in how much of the time?

    python benchmarks/quick_vs_paper.py

Takes 16 to 24 minutes of a quiet machine with two cores. The paper protocol takes minutes a cell, in which a machine
with neighbours gets faster or slower. So both are taken in three parts, in turn: for each workload and batch, on one
device and on two, a third of the 20 epochs, then a third of the quick one's seconds, and again the other way round.
Step times are the medians over the parts. How far the parts of one protocol are from each other says what the machine
allows: two medians of three parts differ by two thirds of that by chance alone. The data is cut to what a CPU can do;
both protocols get the same. The quick intervals are put to the test beside: how many hold the paper's median, timed in
the same minute?
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Hashable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from scalewise.results.measurement import Measurement, Protocol
from scalewise.results.statistics import Interval
from scalewise.session.hardware import cpu_name
from scalewise.verbs.measure import PAPER_EPOCHS, measure

CASES = {"linear": (1200, (10, 20, 50, 100)), "conv": (36, (2, 3, 4, 6))}
"""Samples per epoch, and global batches."""
WANTED_PERCENT, WANTED_SHARE = 3.0, 0.1
PARTS = 3
PROTOCOLS: tuple[Protocol, ...] = ("quick", "paper")
OF_MEDIANS = 0.67
"""The standard deviation of the median of three beside that of one."""


def sweep(
    workload: str, batch: int, protocol: Protocol, options: argparse.Namespace, out: Path
) -> tuple[list[Measurement], float]:
    """One device and two, and the seconds it took."""
    samples, _ = CASES[workload]
    started = perf_counter()
    result = measure(
        workload,
        out=out,
        strategy=["single", "mirrored"],
        devices=[2],
        batch=[max(1, round(batch * options.scale))],
        device_kind="cpu",
        samples=max(2, round(samples * options.scale)),
        protocol=protocol,
        epochs=max(2, -(-options.epochs // PARTS)) if protocol == "paper" else None,
        interval=options.interval,
        budget=options.budget / PARTS,
    )
    return result.measurements, perf_counter() - started


def step_seconds(measurements: list[Measurement]) -> dict[Hashable, Interval]:
    """By cell, whichever the protocol."""
    return {replace(each, protocol="quick").identity: each.step_seconds for each in measurements if each.step_seconds}


def compared(cell: Measurement, quick: list[Interval], paper: list[Interval]) -> dict[str, Any]:
    """One cell's parts of both protocols."""
    quick_medians, paper_medians = [part.median for part in quick], [part.median for part in paper]
    return {
        "workload": cell.workload,
        "devices": cell.devices,
        "batch": cell.batch,
        "paper_step_seconds": median(paper_medians),
        "quick_step_seconds": median(quick_medians),
        "difference_percent": 100 * (median(quick_medians) / median(paper_medians) - 1),
        "paper_apart_percent": apart_percent(paper_medians),
        "quick_apart_percent": apart_percent(quick_medians),
        "width_percent": 100 * median(part.width for part in quick),
        "held": sum(part.low <= there <= part.high for part, there in zip(quick, paper_medians, strict=True)),
        "parts": len(quick),
    }


def apart_percent(parts: list[float]) -> float:
    """How far two of them are from each other, in the median."""
    return 100 * median(abs(one / other - 1) for one, other in combinations(parts, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default=",".join(CASES))
    parser.add_argument("--epochs", type=int, default=PAPER_EPOCHS)
    parser.add_argument("--interval", type=float, default=2.0)
    parser.add_argument("--budget", type=float, default=2.4, help="seconds of a quick cell, at most")
    parser.add_argument("--scale", type=float, default=1.0, help="of samples and batches, to try this script out")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    console = Console(width=110)
    load, began = os.getloadavg()[0], perf_counter()
    console.print(f"2 cores of {cpu_name()}, torch {torch.__version__}; load before the run {load:.2f}")
    if load > 0.3:
        console.print("[yellow]the machine is busy: read the figures with care[/yellow]")
    rows: list[dict[str, Any]] = []
    seconds = {"quick": 0.0, "paper": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        cases = [(workload, batch) for workload in options.workload.split(",") for batch in CASES[workload][1]]
        for workload, batch in cases:
            console.print(f"  {workload}, batch {batch}, after {perf_counter() - began:.0f} s ...", style="dim")
            found: dict[str, list[dict[Hashable, Interval]]] = {"quick": [], "paper": []}
            for part in range(PARTS):
                for protocol in PROTOCOLS if part % 2 else reversed(PROTOCOLS):
                    out = Path(folder) / f"{workload}-{batch}-{protocol}-{part}"
                    cells, taken = sweep(workload, batch, protocol, options, out)
                    found[protocol].append(step_seconds(cells))
                    seconds[protocol] += taken
            for each in cells:
                cell = replace(each, protocol="quick").identity
                if all(cell in part for parts in found.values() for part in parts):
                    rows.append(
                        compared(each, [part[cell] for part in found["quick"]], [part[cell] for part in found["paper"]])
                    )
    console.print(table_of(rows))
    share = seconds["quick"] / seconds["paper"]
    summary = {
        "median_difference_percent": median(abs(row["difference_percent"]) for row in rows),
        "paper_apart_percent": median(row["paper_apart_percent"] for row in rows),
        "quick_apart_percent": median(row["quick_apart_percent"] for row in rows),
        "held_percent": 100 * sum(row["held"] for row in rows) / sum(row["parts"] for row in rows),
        "share_of_time": share,
    }
    floor = OF_MEDIANS * median([summary["paper_apart_percent"], summary["quick_apart_percent"]])
    summary["noise_floor_percent"] = floor
    console.print(
        f"median difference {summary['median_difference_percent']:.1f} % (wanted: {WANTED_PERCENT:g} %); noise floor "
        f"{floor:.1f} % (parts of paper are {summary['paper_apart_percent']:.1f} % from each other, of quick "
        f"{summary['quick_apart_percent']:.1f} %)\nquick takes {seconds['quick']:.0f} s, paper {seconds['paper']:.0f} "
        f"s: {share:.2f} of the time (wanted: {WANTED_SHARE:g})\nquick's 95 % intervals hold paper's median of the "
        f"same minute in {summary['held_percent']:.0f} % of the parts",
        highlight=False,
    )
    if options.json:
        document = {"torch": torch.__version__, "load": load, "rows": rows, **summary}
        options.json.write_text(json.dumps(document, indent=2))


def table_of(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, header_style="dim")
    titles = ("workload", "devices", "batch", "paper", "quick", "difference", "paper apart", "quick apart", "interval")
    for title in titles:
        table.add_column(title, justify="left" if title == "workload" else "right")
    for row in rows:
        table.add_row(
            row["workload"],
            str(row["devices"]),
            str(row["batch"]),
            f"{row['paper_step_seconds'] * 1e3:.2f} ms",
            f"{row['quick_step_seconds'] * 1e3:.2f} ms",
            f"{row['difference_percent']:+.1f} %",
            f"{row['paper_apart_percent']:.1f} %",
            f"{row['quick_apart_percent']:.1f} %",
            f"{row['width_percent']:.0f} %, {row['held']} of {row['parts']}",
        )
    return table


if __name__ == "__main__":
    main()
