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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import mkdtemp

from rich.console import Console
from rich.table import Table

from scalewise.clusters.cluster import Cluster
from scalewise.clusters.read import read_cluster
from scalewise.prediction.predict import Predictor
from scalewise.results.measurement import Measurement
from scalewise.results.profile import Profile, ProfileDocument
from scalewise.results.store import Store
from scalewise.results.units import seconds_text
from scalewise.strategies.registry import STRATEGIES, strategy_of
from scalewise.verbs.links import measure_links
from scalewise.verbs.measure import measure
from scalewise.verbs.profile import profile

DEVICES = 2
LOOPBACK = "loopback"
WORKLOADS = {"linear": (8, 32, 128), "conv": (8, 32), "transformer": (8, 32), "unet": (8, 32)}
ALL = ("mirrored", "ring", "data-parallel", "parameter-server", "central-storage", "layers", "pipeline", "tensor")
LINKS = (LOOPBACK, "1gbit", "200mbit")
ONE_HOST = ("central-storage",)


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
    flags: tuple[str, ...] = ()

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


def clusters_in(out: Path, links: Sequence[str], quick: bool) -> dict[str, Cluster]:
    """Measured once per folder."""
    found = {}
    for link in links:
        path = out / f"cluster-{link}.toml"
        if not path.exists():
            hosts, speed = hosts_of(link)
            say(f"links: {link}")
            measure_links(DEVICES, device_kind="cpu", hosts=hosts, link=speed, quick=quick, save=path)
        found[link] = read_cluster(path)
    return found


def profiles_in(out: Path, workloads: dict[str, Sequence[int]]) -> dict[str, ProfileDocument]:
    found = {}
    for name, batches in workloads.items():
        path = out / f"profile-{name.replace(':', '-')}.json"
        if not path.exists():
            say(f"profile: {name}")
            sizes = sorted({size for batch in batches for size in (batch, -(-batch // DEVICES))})
            profile(name, batch=sizes, device_kind="cpu").write(path)
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
                alone = predictor.predict(strategy_of("single"), 1, batch)
                for strategy in strategies_on(link, strategies):
                    made = predictor.predict(strategy_of(strategy), DEVICES, batch)
                    yield Cell(name, strategy, link, batch, made.seconds, made.low, made.high, alone.seconds)


def measure_all(
    out: Path,
    workloads: dict[str, Sequence[int]],
    links: Sequence[str],
    strategies: Sequence[str],
    interval: float,
    budget: float,
) -> None:
    """Cells that a folder already has are not measured again."""
    for name, batches in workloads.items():
        for link in links:
            hosts, speed = hosts_of(link)
            folder = out / f"measured-{link}"
            say(f"measuring: {name} over {link}")
            chosen = strategies_on(link, strategies)
            measure(
                [name],
                out=folder,
                strategy=["single", *chosen] if link == LOOPBACK else chosen,
                devices=[1, DEVICES] if link == LOOPBACK else [DEVICES],
                batch=list(batches),
                hosts=[hosts],
                link=[speed] if speed else [],
                device_kind="cpu",
                interval=interval,
                budget=budget,
                resume=folder.exists(),
            )


def compared(out: Path, cells: Sequence[Cell]) -> list[Cell]:
    """With what was measured; cells that were not are left out."""
    seen: dict[tuple[str, str, str, int], Measurement] = {}
    for link in {cell.link for cell in cells} | {LOOPBACK}:
        for each in Store.read(out / f"measured-{link}"):
            if each.status == "ok" and (each.devices == DEVICES or each.strategy == "single"):
                seen[each.workload, each.strategy, link, each.batch] = each
    made = []
    for cell in cells:
        own = seen.get((cell.workload, cell.strategy, cell.link, cell.batch))
        alone = seen.get((cell.workload, "single", LOOPBACK, cell.batch))
        if own and alone and own.step_seconds and alone.step_seconds:
            values = asdict(cell) | {
                "measured": own.step_seconds.median,
                "alone_measured": alone.step_seconds.median,
                "flags": tuple(own.flags),
            }
            made.append(Cell(**values))
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
    groups = {"all": list(cells)}
    for key in ("workload", "strategy", "link"):
        for value in dict.fromkeys(getattr(cell, key) for cell in cells):
            groups[value] = [cell for cell in cells if getattr(cell, key) == value]
    for name, members in groups.items():
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
    parser.add_argument("--interval", type=float, default=3.0, help="width of a measured interval in percent")
    parser.add_argument("--budget", type=float, default=4.0, help="seconds for a cell")
    parser.add_argument("--quick", action="store_true", help="measure links with fewer repeats")
    parser.add_argument("--out", type=Path, default=None, help="keep everything in this folder; go on with what it has")
    parser.add_argument("--again", action="store_true", help="measure nothing: score the model on what OUT has")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    workloads = {name: WORKLOADS.get(name, (8, 32)) for name in asked.workload or WORKLOADS}
    if asked.batch:
        workloads = dict.fromkeys(workloads, tuple(int(size) for size in asked.batch.split(",")))
    links = asked.link or list(LINKS)
    strategies = asked.strategy or [name for name in ALL if name in STRATEGIES]
    out = asked.out or Path(mkdtemp(prefix="predict-here-"))
    out.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    if load > 0.5 and not asked.again:
        say(f"the machine is not quiet: load {load:.2f}")
    cells = list(predicted(profiles_in(out, workloads), clusters_in(out, links, asked.quick), workloads, strategies))
    (out / "predictions.json").write_text(json.dumps([asdict(cell) for cell in cells], indent=1))
    if not asked.again:
        measure_all(out, workloads, links, strategies, asked.interval, asked.budget)
    cells = compared(out, cells)
    if asked.json:
        print(json.dumps({"cells": [asdict(cell) for cell in cells], "scores": scores(cells)}, indent=1))
        return
    show(cells)
    print()
    show_scores(cells)


if __name__ == "__main__":
    main()
