"""`measure --protocol quick` beside the study's own protocol: the same step times, in how much of the time?

    python benchmarks/quick_vs_paper.py

The paper protocol takes minutes a cell, in which a machine with neighbours gets faster or slower. So both are taken in
parts, in turn: for each workload and batch, on one device and on two, a few of the 20 epochs, then a share of the quick
one's seconds, and again. Step times are the medians over the parts; how far the first half of the quick parts is from
the second half says what the machine allows. The data is cut to what a CPU can do; both protocols get the same.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from scalewise.results.measurement import Measurement, Protocol
from scalewise.session.hardware import cpu_name
from scalewise.verbs.measure import PAPER_EPOCHS, measure

CASES = {"linear": (1200, (10, 20, 50, 100)), "conv": (36, (2, 3, 4, 6))}
"""Samples per epoch, and global batches."""
WANTED_PERCENT, WANTED_SHARE = 3.0, 0.1
PARTS = 2


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
        epochs=1 + -(-(options.epochs - 1) // PARTS) if protocol == "paper" else None,
        interval=options.interval,
        budget=options.budget / PARTS,
    )
    return result.measurements, perf_counter() - started


def step_seconds(measurements: list[Measurement]) -> dict[Hashable, float]:
    """By cell, whichever the protocol."""
    return {
        replace(each, protocol="quick").identity: each.step_seconds.median for each in measurements if each.step_seconds
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default=",".join(CASES))
    parser.add_argument("--epochs", type=int, default=PAPER_EPOCHS)
    parser.add_argument("--interval", type=float, default=2.0)
    parser.add_argument("--budget", type=float, default=3.0, help="seconds of a quick cell, at most")
    parser.add_argument("--scale", type=float, default=1.0, help="of samples and batches, to try this script out")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    console = Console(width=110)
    load = os.getloadavg()[0]
    console.print(f"2 cores of {cpu_name()}, torch {torch.__version__}; load before the run {load:.2f}")
    if load > 0.3:
        console.print("[yellow]the machine is busy: read the figures with care[/yellow]")
    table = Table(box=None, header_style="dim")
    for title in ("workload", "devices", "batch", "paper", "quick", "difference", "second half"):
        table.add_column(title, justify="left" if title == "workload" else "right")
    rows: list[dict[str, Any]] = []
    seconds = {"quick": 0.0, "paper": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        cases = [(workload, batch) for workload in options.workload.split(",") for batch in CASES[workload][1]]
        for workload, batch in cases:
            console.print(f"  {workload}, batch {batch} ...", style="dim")
            found: dict[str, list[dict[Hashable, float]]] = {"quick": [], "paper": []}
            for part in range(PARTS):
                for protocol in ("quick", "paper") if part % 2 else ("paper", "quick"):
                    out = Path(folder) / f"{workload}-{batch}-{protocol}-{part}"
                    cells, taken = sweep(workload, batch, protocol, options, out)
                    found[protocol].append(step_seconds(cells))
                    seconds[protocol] += taken
            for each in cells:
                cell = replace(each, protocol="quick").identity
                if all(cell in part for parts in found.values() for part in parts):
                    quick, paper = ([part[cell] for part in found[protocol]] for protocol in ("quick", "paper"))
                    first, second = median(quick[: PARTS // 2]), median(quick[PARTS // 2 :])
                    rows.append(
                        {
                            "workload": workload,
                            "devices": each.devices,
                            "batch": each.batch,
                            "paper_step_seconds": median(paper),
                            "quick_step_seconds": median(quick),
                            "difference_percent": 100 * (median(quick) / median(paper) - 1),
                            "repeat_percent": 100 * (second / first - 1),
                        }
                    )
    for row in rows:
        table.add_row(
            row["workload"],
            str(row["devices"]),
            str(row["batch"]),
            f"{row['paper_step_seconds'] * 1e3:.2f} ms",
            f"{row['quick_step_seconds'] * 1e3:.2f} ms",
            f"{row['difference_percent']:+.1f} %",
            f"{row['repeat_percent']:+.1f} %",
        )
    difference = median(abs(row["difference_percent"]) for row in rows)
    repeat = median(abs(row["repeat_percent"]) for row in rows)
    share = seconds["quick"] / seconds["paper"]
    console.print(table)
    console.print(
        f"median difference {difference:.1f} % (wanted: {WANTED_PERCENT:g} %; halves of the quick parts: "
        f"{repeat:.1f} %); quick takes {seconds['quick']:.0f} s, paper {seconds['paper']:.0f} s: {share:.2f} of the "
        f"time (wanted: {WANTED_SHARE:g})"
    )
    if options.json:
        summary = {"median_difference_percent": difference, "repeat_percent": repeat, "share_of_time": share}
        options.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows, **summary}, indent=2))


if __name__ == "__main__":
    main()
