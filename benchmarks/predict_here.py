"""Predictions for this machine, made from one rank's profile and doctor's links before anything is run, then measured.

    python benchmarks/predict_here.py                                  # two cores, loopback and rehearsed hosts
    python benchmarks/predict_here.py --workload linear --link loopback --out runs/here
    python benchmarks/predict_here.py --out runs/here --again          # predict what was measured there, once more

Cells: strategies x workloads x batches x links, on two devices. A cell chokes where it is slower than one device at the
same batch. `OUT` keeps profiles, clusters and measurements; `--again` scores the present model on them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from time import perf_counter
from typing import TypeVar

import psutil
from rich.console import Console
from rich.table import Table

from scalewise.clusters.cluster import Cluster
from scalewise.clusters.read import read_cluster
from scalewise.clusters.write import cluster_text
from scalewise.errors import RunFailed, UserError
from scalewise.prediction.predict import Predictor
from scalewise.results.profile import Profile, ProfileDocument
from scalewise.results.units import seconds_text
from scalewise.session.placement import Placement
from scalewise.step.settings import Settings
from scalewise.strategies.registry import STRATEGIES, strategy_of
from scalewise.strategies.strategy import Strategy, servers_of
from scalewise.training.request import Request
from scalewise.verbs.links import measure_links
from scalewise.verbs.profile import profile
from scalewise.verbs.sessions import Sessions
from scalewise.verbs.timing import time_steps, timed

DEVICES = 2
LOOPBACK = "loopback"
ALONE = "single"
"""Not scored: how far the machine is from what it was when one device was profiled, which no model can foresee."""
WORKLOADS = {"linear": (8, 64), "conv": (2, 8), "transformer": (16,), "unet": (16,)}
ALL = ("mirrored", "ring", "data-parallel", "parameter-server", "central-storage", "layers", "pipeline", "tensor")
LINKS = (LOOPBACK, "1gbit", "200mbit")
ONE_HOST = ("central-storage",)


MEASURED = "measured.jsonl"
TRIES, DISTURBED = 3, 0.15
"""How often what was disturbed is done again, and from how many cores of other programs on it counts as that."""
KERNEL = 2
"""The process whose children are the kernel's threads."""
WARM_UP_STEPS, FEWEST_STEPS, MOST_STEPS, BLOCK_SECONDS = 2, 2, 40, 0.5
Key = tuple[str, str, str, int]
"""Workload, strategy, link, batch."""
Found = tuple[float, list[float], dict[str, float]]
"""Seconds of a step, those of every block, and the phases of the quickest."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Cell:
    """Seconds of a step, predicted and measured."""

    workload: str
    strategy: str
    link: str
    batch: int
    predicted: float
    low: float
    high: float
    alone_predicted: float
    measured: float = float("nan")
    alone_measured: float = float("nan")

    @property
    def key(self) -> Key:
        return self.workload, self.strategy, self.link, self.batch

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def holds(self) -> bool:
        return self.low <= self.measured <= self.high

    @property
    def foreseen_choke(self) -> bool:
        return self.predicted > self.alone_predicted

    @property
    def choked(self) -> bool:
        return self.measured > self.alone_measured


def strategies_on(link: str, chosen: Sequence[str]) -> list[str]:
    return [name for name in chosen if link == LOOPBACK or name not in ONE_HOST]


def hosts_of(link: str) -> tuple[int, str | None]:
    return (1, None) if link == LOOPBACK else (2, link)


class Others:
    """What other programs took of the processor meanwhile, in cores: `with Others() as others: ...; others.cores`."""

    cores = 0.0

    def __enter__(self) -> Others:
        self.started, self.before = perf_counter(), _seconds_of_others()
        return self

    def __exit__(self, *_: object) -> None:
        after = _seconds_of_others()
        taken = sum(seconds - self.before.get(pid, 0.0) for pid, seconds in after.items())
        self.cores = taken / (perf_counter() - self.started)

    @property
    def quiet(self) -> bool:
        return self.cores < DISTURBED


def _seconds_of_others() -> dict[int, float]:
    """By process; those of this one, its descendants and the kernel are left out."""
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    taken = {}
    for process in psutil.process_iter(["pid", "ppid", "cpu_times"]):
        times = process.info["cpu_times"]
        if (
            process.info["pid"] not in own
            and process.info["ppid"] != KERNEL
            and process.info["pid"] != KERNEL
            and times
        ):
            taken[process.info["pid"]] = times.user + times.system
    return taken


def undisturbed(work: Callable[[], Result]) -> Result:
    """The work's result, done again while other programs run beside it."""
    for _ in range(TRIES):
        with Others() as others:
            result = work()
        if others.quiet:
            return result
        say(f"  other programs took {others.cores:.2f} cores meanwhile")
    return result


def clusters_in(out: Path, links: Sequence[str], quick: bool) -> dict[str, Cluster]:
    """Measured once per folder."""
    found = {}
    for link in links:
        path = out / f"cluster-{link}.toml"
        if not path.exists():
            hosts, speed = hosts_of(link)
            say(f"links: {link}")
            look = partial(measure_links, DEVICES, device_kind="cpu", hosts=hosts, link=speed, quick=quick)
            path.write_text(cluster_text(undisturbed(look).cluster))
        found[link] = read_cluster(path)
    return found


def profiles_in(out: Path, workloads: dict[str, Sequence[int]]) -> dict[str, ProfileDocument]:
    found = {}
    for name, batches in workloads.items():
        path = out / f"profile-{name.replace(':', '-')}.json"
        if not path.exists():
            say(f"profile: {name}")
            sizes = sorted({size for batch in batches for size in (batch, -(-batch // DEVICES))})
            undisturbed(partial(profile, name, batch=sizes, device_kind="cpu")).write(path)
        found[name] = Profile.read(path).document
    return found


def predicted(
    profiles: dict[str, ProfileDocument],
    clusters: dict[str, Cluster],
    workloads: dict[str, Sequence[int]],
    strategies: Sequence[str],
) -> Iterator[Cell]:
    for name, batches in workloads.items():
        for link, cluster in clusters.items():
            predictor = Predictor(profiles[name], cluster)
            for batch in batches:
                alone = predictor.predict(strategy_of(ALONE), 1, batch)
                if link == LOOPBACK:
                    yield Cell(name, ALONE, link, batch, alone.seconds, alone.low, alone.high, alone.seconds)
                for strategy in strategies_on(link, strategies):
                    try:
                        made = predictor.predict(strategy_of(strategy), DEVICES, batch)
                    except UserError as error:
                        say(f"left out: {name}, {strategy}: {error}")
                        continue
                    yield Cell(name, strategy, link, batch, made.seconds, made.low, made.high, alone.seconds)


@dataclass
class Run:
    """A cell while it is measured: the median step of every block."""

    key: Key
    strategy: Strategy
    placement: Placement
    settings: Settings
    predicted: float
    blocks: list[float] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)

    def visit(self, sessions: Sessions) -> None:
        known = min(self.blocks, default=self.predicted)
        steps = WARM_UP_STEPS + min(MOST_STEPS, max(FEWEST_STEPS, int(BLOCK_SECONDS / known)))
        request = Request(self.key[0], self.strategy, replace(self.settings, steps=steps))
        placement, outcomes, seconds = sessions.run(self.strategy, self.placement, time_steps, request)
        block = timed(request, placement, outcomes, seconds).block
        step = median(block.seconds)
        if step <= min(self.blocks, default=step):
            self.phases = block.phases
        self.blocks.append(step)

    @property
    def seconds(self) -> float:
        """A low quantile of the blocks: what disturbs makes them longer, never shorter."""
        ordered = sorted(self.blocks)
        return ordered[(len(ordered) - 1) // 3]


def measure_all(out: Path, cells: Sequence[Cell], rounds: int) -> None:
    """Link by link, cells in turn, as many times as there are rounds; what a folder already has is left alone."""
    known = measured_in(out)
    with Sessions() as sessions:
        for link in dict.fromkeys(cell.link for cell in cells):
            runs = [run_of(cell) for cell in cells if cell.link == link and cell.key not in known]
            for number in range(rounds):
                say(f"measuring over {link}: round {number + 1} of {rounds}, {len(runs)} cells")
                for run in list(runs) if number % 2 else list(reversed(runs)):
                    try:
                        undisturbed_visit(run, sessions)
                    except (UserError, RunFailed) as error:
                        say(f"left out: {', '.join(map(str, run.key))}: {error}")
                        runs.remove(run)
                keep(out, known | {run.key: (run.seconds, run.blocks, run.phases) for run in runs})
            known = measured_in(out)


def keep(out: Path, found: dict[Key, Found]) -> None:
    (out / MEASURED).write_text("".join(json.dumps([*key, *of]) + "\n" for key, of in found.items()))


def run_of(cell: Cell) -> Run:
    hosts, speed = hosts_of(cell.link)
    strategy = strategy_of(cell.strategy)
    devices = 1 if cell.strategy == ALONE else DEVICES
    placement = Placement(devices, "cpu", hosts=hosts, link=speed, servers=servers_of(strategy))
    return Run(cell.key, strategy, placement, Settings(cell.batch, None, 1), cell.predicted)


def undisturbed_visit(run: Run, sessions: Sessions) -> None:
    """A block that others disturbed is not kept."""
    for attempt in range(TRIES):
        with Others() as others:
            run.visit(sessions)
        if others.quiet or attempt == TRIES - 1:
            return
        run.blocks.pop()


def measured_in(out: Path) -> dict[Key, Found]:
    path = out / MEASURED
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(row[0], row[1], row[2], row[3]): (row[4], row[5], row[6]) for row in rows}


def compared(out: Path, cells: Sequence[Cell]) -> list[Cell]:
    """With what was measured; cells that were not are left out."""
    known = measured_in(out)
    made = []
    for cell in cells:
        alone = (cell.workload, ALONE, LOOPBACK, cell.batch)
        if cell.key in known and alone in known:
            made.append(replace(cell, measured=known[cell.key][0], alone_measured=known[alone][0]))
    return made


def scores(cells: Sequence[Cell]) -> dict[str, float | int | None]:
    errors = sorted(100 * abs(cell.error) for cell in cells)
    choked = [cell for cell in cells if cell.choked]
    alarms = [cell for cell in cells if cell.foreseen_choke]
    right = [cell for cell in choked if cell.foreseen_choke]
    return {
        "cells": len(cells),
        "median_error_percent": median(errors),
        "p90_error_percent": errors[min(len(errors) - 1, int(0.9 * len(errors)))],
        "worst_error_percent": errors[-1],
        "bias_percent": 100 * median(cell.error for cell in cells),
        "choking": len(choked),
        "choke_recall_percent": 100 * len(right) / len(choked) if choked else None,
        "false_alarm_percent": 100 * (len(alarms) - len(right)) / len(alarms) if alarms else None,
        "inside_interval_percent": 100 * sum(cell.holds for cell in cells) / len(cells),
    }


def show(cells: Sequence[Cell]) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("workload", "strategy", "link"):
        table.add_column(title, no_wrap=True)
    for title in ("batch", "predicted", "90 %", "measured", "error", "one device", "choke"):
        table.add_column(title, justify="right", no_wrap=True)
    for cell in cells:
        table.add_row(
            cell.workload,
            cell.strategy,
            cell.link,
            str(cell.batch),
            seconds_text(cell.predicted),
            f"{seconds_text(cell.low)} - {seconds_text(cell.high)}" + ("" if cell.holds else " !"),
            seconds_text(cell.measured),
            f"{100 * cell.error:+.0f} %",
            seconds_text(cell.alone_measured),
            {(True, True): "foreseen", (True, False): "missed", (False, True): "false alarm"}.get(
                (cell.choked, cell.foreseen_choke), ""
            ),
        )
    Console(width=140, highlight=False).print(table)


def show_scores(cells: Sequence[Cell]) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for title in ("cells", "median", "90 %", "worst", "bias", "choking", "foreseen", "false alarms", "inside"):
        table.add_column(title, justify="right", no_wrap=True)
    scored = [cell for cell in cells if cell.strategy != ALONE]
    groups = {"all": scored}
    for key in ("workload", "strategy", "link"):
        for value in dict.fromkeys(getattr(cell, key) for cell in scored):
            groups[value] = [cell for cell in scored if getattr(cell, key) == value]
    groups["(one device)"] = [cell for cell in cells if cell.strategy == ALONE]
    for name, members in groups.items():
        if not members:
            continue
        found = scores(members)
        texts = [
            "-" if found[key] is None else f"{found[key]:+.0f} %" if key.startswith("bias") else f"{found[key]:.1f} %"
            for key in (
                "median_error_percent", "p90_error_percent", "worst_error_percent", "bias_percent",
            )
        ]  # fmt: skip
        rates = [
            "-" if found[key] is None else f"{found[key]:.0f} %"
            for key in ("choke_recall_percent", "false_alarm_percent", "inside_interval_percent")
        ]
        table.add_row(name, str(found["cells"]), *texts, str(found["choking"]), *rates)
    Console(width=140, highlight=False).print(table)


def say(what: str) -> None:
    print(what, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", help=f"repeat it; {', '.join(WORKLOADS)}")
    parser.add_argument("--strategy", action="append", help="repeat it; all that this version has")
    parser.add_argument("--link", action="append", help=f"repeat it; {', '.join(LINKS)}")
    parser.add_argument("--batch", help="a comma list, instead of two or three for each workload")
    parser.add_argument("--rounds", type=int, default=3, help="blocks of steps that each cell is measured in")
    parser.add_argument("--quick", action="store_true", help="measure links with fewer repeats")
    parser.add_argument("--out", type=Path, default=None, help="keep everything in this folder; go on with what it has")
    parser.add_argument("--again", action="store_true", help="measure nothing: score the model on what OUT has")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    workloads: dict[str, Sequence[int]] = {name: WORKLOADS.get(name, (8, 64)) for name in asked.workload or WORKLOADS}
    if asked.batch:
        workloads = dict.fromkeys(workloads, tuple(int(size) for size in asked.batch.split(",")))
    links = asked.link or list(LINKS)
    strategies = asked.strategy or [name for name in ALL if name in STRATEGIES]
    out = asked.out or Path(mkdtemp(prefix="predict-here-"))
    out.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    if load > 0.5 and not asked.again:
        say(f"the machine is not quiet: load {load:.2f}")
    clusters = clusters_in(out, links, asked.quick)
    cells = list(predicted(profiles_in(out, workloads), clusters, workloads, strategies))
    (out / "predictions.json").write_text(json.dumps([asdict(cell) for cell in cells], indent=1))
    if not asked.again:
        measure_all(out, cells, asked.rounds)
    cells = compared(out, cells)
    if asked.json:
        scored = [cell for cell in cells if cell.strategy != ALONE]
        print(json.dumps({"cells": [asdict(cell) for cell in cells], "scores": scores(scored)}, indent=1))
        return
    show(cells)
    print()
    show_scores(cells)


if __name__ == "__main__":
    main()
