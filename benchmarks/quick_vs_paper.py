"""`measure --protocol quick` compared with the study's own protocol: difference of step times, and share of the time.

    python benchmarks/quick_vs_paper.py

Takes about 18 minutes on a quiet machine with two cores. The paper protocol takes minutes per cell, during which a
shared machine becomes faster or slower. Therefore the two protocols alternate within every cell, on the same open
ranks: a visit of quick, a part of the paper's epochs (the first epoch of each part is dropped), a visit, a part, and so
on. There are as many visits as fit quick's budget, spread over the parts.

    quick   v   v       v       v       v       v       the first visit is not counted
    paper    PPP PPP PPP PPP PPP PPP PPP PPP PPP PPP

Visits are those of `measure`. The paper's step time is the median of its steps. The differences between its parts show
the noise of the machine: by chance alone, the median of as many parts as quick has visits differs from the whole by
about half of that.
Both protocols use the same data, reduced to what a CPU can train. The script also counts in how many cells the interval
of quick contains the paper's median.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from scalewise.core.training_options import Settings
from scalewise.data.dataset import DataRequest
from scalewise.formats.store import Protocol
from scalewise.launch.devices import cpu_name
from scalewise.launch.placement import Placement
from scalewise.strategies.registry import strategy_of
from scalewise.sweep.grid import Cell
from scalewise.sweep.measure import PAPER_EPOCHS
from scalewise.sweep.stopping_rule import Goal, spent_seconds
from scalewise.sweep.timed_cell import Task, Timed, Trial, time_steps, timed, timed_epochs
from scalewise.training.results import Request
from scalewise.training.session_pool import Sessions

CASES = {"linear": (800, (10, 20, 50, 100)), "conv": (36, (2, 3, 4, 6))}
"""Samples per epoch, and global batches."""
TARGET_PERCENT, TARGET_SHARE = 3.0, 0.1
PARTS = 10
OF_MEDIANS = 0.54
"""Standard deviation of the median of five values, relative to that of one."""


class Pair:
    """One cell, measured with both protocols."""

    def __init__(self, workload: str, devices: int, batch: int, samples: int, options: argparse.Namespace) -> None:
        self.workload, self.devices, self.batch = workload, devices, batch
        self.goal = Goal(options.interval, options.budget)
        strategy = strategy_of("single" if devices == 1 else "mirrored")
        placement = Placement(devices, "cpu")
        settings = Settings(batch, epochs=1 + -(-options.epochs // PARTS))

        def request(steps: int | None) -> Request:
            run_settings = settings if steps is None else replace(settings, epochs=None, steps=steps)
            return Request(workload, strategy, run_settings, DataRequest(samples=samples))

        def task(protocol: Protocol) -> Task:
            cell = Cell(workload, strategy, devices, "cpu", 1, None, batch, "fp32", "adam", protocol, "eager")
            return Task(cell, placement, request, samples, "")

        self.quick, self.paper = Trial(task("quick")), Trial(task("paper"))
        self.parts: list[float] = []
        """Median step time of every part of the paper protocol."""
        self.seconds = {"quick": 0.0, "paper": 0.0}

    def run(self, sessions: Sessions, expected_seconds: float | None) -> None:
        for part in range(PARTS):
            self._visit(sessions, expected_seconds, part)
            epochs = self._time(sessions, self.paper, None)
            self.paper.seen += epochs
            self.parts.append(median(step for epoch in epochs for step in epoch.block.seconds))
        self._visit(sessions, expected_seconds, PARTS)

    def _visit(self, sessions: Sessions, expected_seconds: float | None, part: int) -> None:
        """Measure one visit of quick, unless its share of the budget up to this part is spent."""
        due = spent_seconds(self.quick.blocks) <= self.goal.budget_seconds * part / PARTS
        if not self.quick.seen or (due and not self.goal.ends(self.quick.blocks)):
            self.quick.seen += self._time(sessions, self.quick, self.quick.steps(self.goal, expected_seconds))

    def _time(self, sessions: Sessions, trial: Trial, steps: int | None) -> list[Timed]:
        request = trial.task.request(steps)
        started = perf_counter()
        placement, outcomes, seconds = sessions.run(trial.cell.strategy, trial.task.placement, time_steps, request)
        self.seconds[trial.cell.protocol] += perf_counter() - started
        combine = timed_epochs if steps is None else lambda *arguments: [timed(*arguments)]
        return combine(request, placement, outcomes, seconds)

    def figures(self) -> dict[str, Any]:
        quick, paper = self.quick.interval, self.paper.interval
        return {
            "workload": self.workload,
            "devices": self.devices,
            "batch": self.batch,
            "paper_step_seconds": paper.median,
            "quick_step_seconds": quick.median,
            "difference_percent": 100 * (quick.median / paper.median - 1),
            "apart_percent": 100 * median(abs(one / other - 1) for one, other in combinations(self.parts, 2)),
            "width_percent": 100 * quick.width,
            "visits": len(self.quick.seen),
            "held": quick.low <= paper.median <= quick.high,
            "quick_seconds": self.seconds["quick"],
            "paper_seconds": self.seconds["paper"],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default=",".join(CASES))
    parser.add_argument("--epochs", type=int, default=PAPER_EPOCHS, help="epochs of the paper protocol that count")
    parser.add_argument("--interval", type=float, default=2.0, help="target width of quick's intervals, in percent")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds of all visits of a quick cell together")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of samples and batches, to try the script")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    console = Console(width=130)
    load, started = os.getloadavg()[0], perf_counter()
    console.print(f"2 cores of {cpu_name()}, torch {torch.__version__}; load before the run {load:.2f}")
    if load > 0.3:
        console.print("[yellow]the machine is busy: figures are uncertain[/yellow]")
    rows: list[dict[str, Any]] = []
    with Sessions() as sessions:
        for workload in options.workload.split(","):
            samples, batches = CASES[workload]
            step_seconds: list[tuple[int, float]] = []
            for batch in (max(1, round(batch * options.scale)) for batch in batches):
                for devices in (1, 2):
                    console.print(
                        f"  {workload}, batch {batch}, {devices} device{'s' * (devices > 1)}, after "
                        f"{perf_counter() - started:.0f} s ...",
                        style="dim",
                    )
                    expected = max((seconds * max(1.0, batch / other) for other, seconds in step_seconds), default=None)
                    pair = Pair(workload, devices, batch, max(2, round(samples * options.scale)), options)
                    pair.run(sessions, expected)
                    rows.append(pair.figures())
                    step_seconds.append((batch, pair.quick.interval.median))
    console.print(table_of(rows))
    summary = summary_of(rows)
    console.print(summary_text(summary), highlight=False)
    if options.json:
        document = {"torch": torch.__version__, "load": load, "rows": rows, **summary}
        options.json.write_text(json.dumps(document, indent=2))


def summary_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    quick, paper = (sum(row[f"{protocol}_seconds"] for row in rows) for protocol in ("quick", "paper"))
    apart = median(row["apart_percent"] for row in rows)
    return {
        "median_difference_percent": median(abs(row["difference_percent"]) for row in rows),
        "apart_percent": apart,
        "noise_floor_percent": OF_MEDIANS * apart,
        "held_percent": 100 * sum(row["held"] for row in rows) / len(rows),
        "quick_seconds": quick,
        "paper_seconds": paper,
        "share_of_time": quick / paper,
    }


def summary_text(summary: dict[str, float]) -> str:
    return (
        f"median difference {summary['median_difference_percent']:.1f} % (target: {TARGET_PERCENT:g} %); noise floor "
        f"{summary['noise_floor_percent']:.1f} % (parts of paper differ by {summary['apart_percent']:.1f} %)"
        f"\nquick takes {summary['quick_seconds']:.0f} s, paper {summary['paper_seconds']:.0f} s: "
        f"{summary['share_of_time']:.2f} of the time (target: {TARGET_SHARE:g})\nquick's 95 % interval contains "
        f"paper's median in {summary['held_percent']:.0f} % of the cells"
    )


def table_of(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, header_style="dim")
    titles = (
        "workload",
        "devices",
        "batch",
        "paper step",
        "quick step",
        "difference",
        "paper noise",
        "visits",
        "interval width",
        "paper in interval",
    )
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
            f"{row['apart_percent']:.1f} %",
            str(row["visits"]),
            f"{row['width_percent']:.0f} %",
            "yes" if row["held"] else "no",
        )
    return table


if __name__ == "__main__":
    main()
