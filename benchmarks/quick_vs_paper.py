"""`measure --protocol quick` beside the study's own protocol: the same step times, in how much of the time?

    python benchmarks/quick_vs_paper.py

Takes some 18 minutes of a quiet machine with two cores. The paper protocol takes minutes a cell, in which a machine
with neighbours gets faster or slower. So both are taken in turn, cell by cell, on the same open ranks: a visit of
quick, then a part of the paper's epochs (the first of each part is dropped), a visit, a part, ... as many visits as
quick's budget has room for, spread over the parts.

    quick   v   v       v       v       v       v       the first of them does not count
    paper    PPP PPP PPP PPP PPP PPP PPP PPP PPP PPP

Visits, their steps and what is made of them are `measure`'s own. The paper's step time is the median of its steps.
How far its parts are from each other says what the machine allows: the median of as many as quick has visits differs
from the whole by half of that by chance.
The data is cut to what a CPU can do; both protocols get the same. The quick intervals are put to the test beside: how
many hold the paper's median?
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

from scalewise.data.data import DataRequest
from scalewise.measuring.cell import Cell
from scalewise.measuring.stopping import Goal, spent_seconds
from scalewise.results.measurement import Protocol
from scalewise.session.hardware import cpu_name
from scalewise.session.placement import Placement
from scalewise.step.settings import Settings
from scalewise.strategies.registry import strategy_of
from scalewise.training.request import Request
from scalewise.verbs.measure import PAPER_EPOCHS
from scalewise.verbs.sessions import Sessions
from scalewise.verbs.timing import Timed, time_steps, timed, timed_epochs
from scalewise.verbs.trial import Task, Trial

CASES = {"linear": (800, (10, 20, 50, 100)), "conv": (36, (2, 3, 4, 6))}
"""Samples per epoch, and global batches."""
WANTED_PERCENT, WANTED_SHARE = 3.0, 0.1
PARTS = 10
OF_MEDIANS = 0.54
"""The standard deviation of the median of five beside that of one."""


class Pair:
    """One cell under both protocols."""

    def __init__(self, workload: str, devices: int, batch: int, samples: int, options: argparse.Namespace) -> None:
        self.workload, self.devices, self.batch = workload, devices, batch
        self.goal = Goal(options.interval, options.budget)
        strategy = strategy_of("single" if devices == 1 else "mirrored")
        placement = Placement(devices, "cpu")
        settings = Settings(batch, epochs=1 + -(-options.epochs // PARTS))

        def asked(steps: int | None) -> Request:
            chosen = settings if steps is None else replace(settings, epochs=None, steps=steps)
            return Request(workload, strategy, chosen, DataRequest(samples=samples))

        def task(protocol: Protocol) -> Task:
            cell = Cell(workload, strategy, devices, "cpu", 1, None, batch, "fp32", "adam", protocol, "eager")
            return Task(cell, placement, asked, samples, "")

        self.quick, self.paper = Trial(task("quick")), Trial(task("paper"))
        self.parts: list[float] = []
        """The paper's median of each."""
        self.seconds = {"quick": 0.0, "paper": 0.0}

    def run(self, sessions: Sessions, expected_seconds: float | None) -> None:
        for part in range(PARTS):
            self._visit(sessions, expected_seconds, part)
            found = self._time(sessions, self.paper, None)
            self.paper.seen += found
            self.parts.append(median(step for each in found for step in each.block.seconds))
        self._visit(sessions, expected_seconds, PARTS)

    def _visit(self, sessions: Sessions, expected_seconds: float | None, part: int) -> None:
        """As long as the budget for so many parts is not spent."""
        due = spent_seconds(self.quick.blocks) <= self.goal.budget_seconds * part / PARTS
        if not self.quick.seen or (due and not self.goal.ends(self.quick.blocks)):
            self.quick.seen += self._time(sessions, self.quick, self.quick.steps(self.goal, expected_seconds))

    def _time(self, sessions: Sessions, trial: Trial, steps: int | None) -> list[Timed]:
        request = trial.task.request(steps)
        started = perf_counter()
        placement, outcomes, seconds = sessions.run(trial.cell.strategy, trial.task.placement, time_steps, request)
        self.seconds[trial.cell.protocol] += perf_counter() - started
        combine = timed_epochs if steps is None else lambda *found: [timed(*found)]
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
    parser.add_argument("--epochs", type=int, default=PAPER_EPOCHS, help="of the paper protocol that count")
    parser.add_argument("--interval", type=float, default=2.0)
    parser.add_argument("--budget", type=float, default=5.0, help="seconds of a quick cell; its visits share them")
    parser.add_argument("--scale", type=float, default=1.0, help="of samples and batches, to try this script out")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    console = Console(width=110)
    load, began = os.getloadavg()[0], perf_counter()
    console.print(f"2 cores of {cpu_name()}, torch {torch.__version__}; load before the run {load:.2f}")
    if load > 0.3:
        console.print("[yellow]the machine is busy: read the figures with care[/yellow]")
    rows: list[dict[str, Any]] = []
    with Sessions() as sessions:
        for workload in options.workload.split(","):
            samples, batches = CASES[workload]
            seen: list[tuple[int, float]] = []
            for batch in (max(1, round(each * options.scale)) for each in batches):
                for devices in (1, 2):
                    console.print(
                        f"  {workload}, batch {batch}, {devices} device{'s' * (devices > 1)}, after "
                        f"{perf_counter() - began:.0f} s ...",
                        style="dim",
                    )
                    expected = max((seconds * max(1.0, batch / other) for other, seconds in seen), default=None)
                    pair = Pair(workload, devices, batch, max(2, round(samples * options.scale)), options)
                    pair.run(sessions, expected)
                    rows.append(pair.figures())
                    seen.append((batch, pair.quick.interval.median))
    console.print(table_of(rows))
    summary = summed_up(rows)
    console.print(words(summary), highlight=False)
    if options.json:
        document = {"torch": torch.__version__, "load": load, "rows": rows, **summary}
        options.json.write_text(json.dumps(document, indent=2))


def summed_up(rows: list[dict[str, Any]]) -> dict[str, float]:
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


def words(summary: dict[str, float]) -> str:
    return (
        f"median difference {summary['median_difference_percent']:.1f} % (wanted: {WANTED_PERCENT:g} %); noise floor "
        f"{summary['noise_floor_percent']:.1f} % (parts of paper are {summary['apart_percent']:.1f} % from each other)"
        f"\nquick takes {summary['quick_seconds']:.0f} s, paper {summary['paper_seconds']:.0f} s: "
        f"{summary['share_of_time']:.2f} of the time (wanted: {WANTED_SHARE:g})\nquick's 95 % interval holds paper's "
        f"median in {summary['held_percent']:.0f} % of the cells"
    )


def table_of(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, header_style="dim")
    titles = ("workload", "devices", "batch", "paper", "quick", "difference", "parts apart", "visits", "interval", "")
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
            "holds" if row["held"] else "misses",
        )
    return table


if __name__ == "__main__":
    main()
