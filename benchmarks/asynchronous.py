"""Asynchronous beside synchronous parameter servers: the loss at equal samples, and what a straggler costs.

    python benchmarks/asynchronous.py losses --device-kind slice   # both speech models, 4 workers
    python benchmarks/asynchronous.py straggler                    # U-Net, 2 CPU workers, one at half speed

Losses are means over the last epoch's samples, each before its update. Throughput is in samples per second of wall time
after the warm-up, of both alike; runs with and without the straggler take turns.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from time import perf_counter

import torch
from rich.console import Console
from rich.table import Table

import scalewise
from scalewise.results.train import TrainResult

SYNCHRONOUS, ASYNCHRONOUS = "parameter-server", "parameter-server-async"
MOST_DIFFERENCE = 0.10
LEAST_THROUGHPUT = 0.80


def losses(
    workloads: list[str],
    device_kind: str,
    epochs: int,
    batch: int,
    samples: int | None,
    seeds: list[int],
    console: Console,
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    table = Table(title="training loss over the last epoch, 4 workers", title_justify="left")
    for name in ("workload", "epochs", "batch", "seed", "synchronous", "asynchronous", "difference", "staleness"):
        table.add_column(name, justify="right")
    for workload in workloads:
        found: dict[str, list[float]] = {SYNCHRONOUS: [], ASYNCHRONOUS: []}
        settings = workload, str(epochs), str(batch)
        for seed in seeds:
            row: dict[str, object] = {"workload": workload, "epochs": epochs, "batch": batch, "seed": seed}
            stale = ""
            for strategy, reached in found.items():
                started = perf_counter()
                result = scalewise.train(
                    workload,
                    strategy=strategy,
                    devices=4,
                    device_kind=device_kind,
                    batch=batch,
                    epochs=epochs,
                    samples=samples,
                    seed=seed,
                )
                row[strategy] = last_epoch(result, epochs)
                reached.append(last_epoch(result, epochs))
                seconds = perf_counter() - started
                console.print(f"  {workload}, {strategy}: {reached[-1]:.4f} in {seconds:.0f} s", style="dim")
                if result.staleness:
                    row["staleness"] = asdict(result.staleness)
                    stale = f"{result.staleness.mean:.2f}, at most {result.staleness.max}"
            rows.append(row)
            table.add_row(*settings, str(seed), *_compared(*(reached[-1] for reached in found.values())), stale)
        table.add_row(*settings, "mean", *_compared(*map(mean, found.values())), end_section=True)
    console.print(table)
    console.print(f"wanted: asynchronous no more than {MOST_DIFFERENCE:.0%} above synchronous, in the mean over seeds")
    return rows


def _compared(synchronous: float, asynchronous: float) -> tuple[str, str, str]:
    return f"{synchronous:.4f}", f"{asynchronous:.4f}", f"{asynchronous / synchronous - 1:+.1%}"


def last_epoch(result: TrainResult, epochs: int) -> float:
    """The mean over the samples of the last of so many epochs."""
    total = sum(samples for _, _, samples in result.curve)
    left, weighted = total / epochs, 0.0
    for _, loss, samples in reversed(result.curve):
        taken = min(samples, left)
        weighted += loss * taken
        left -= taken
    return weighted / (total / epochs)


def straggler(workload: str, repeats: int, steps: int, console: Console) -> dict[str, object]:
    rates: dict[str, list[float]] = {}
    for repeat in range(repeats):
        for strategy in (SYNCHRONOUS, ASYNCHRONOUS):
            for slow in ({}, {1: 0.5}):
                result = scalewise.train(
                    workload, strategy=strategy, devices=2, device_kind="cpu", batch=16, steps=steps, slow=slow
                )
                assert result.samples_per_second is not None
                name = f"{strategy}{', one at half speed' if slow else ''}"
                rates.setdefault(name, []).append(result.samples_per_second)
        console.print(f"  round {repeat + 1} of {repeats}", style="dim")
    found = {name: median(each) for name, each in rates.items()}
    kept = {
        strategy: found[f"{strategy}, one at half speed"] / found[strategy] for strategy in (SYNCHRONOUS, ASYNCHRONOUS)
    }
    # Two equal workers give 2; with one at half speed the devices can give 1.5.
    of_possible = {strategy: share / 0.75 for strategy, share in kept.items()}
    table = Table(title=f"{workload}, 2 workers, samples per second", title_justify="left")
    for name in ("", "equal", "one at half speed", "kept", "of what the devices can give"):
        table.add_column(name, justify="right")
    for strategy in (SYNCHRONOUS, ASYNCHRONOUS):
        table.add_row(
            strategy, f"{found[strategy]:.0f}", f"{found[f'{strategy}, one at half speed']:.0f}",
            f"{kept[strategy]:.0%}", f"{of_possible[strategy]:.0%}",
        )  # fmt: skip
    console.print(table)
    console.print(f"wanted: asynchronous keeps at least {LEAST_THROUGHPUT:.0%} of what the devices can give")
    if max(of_possible.values()) > 1.05:
        console.print(
            "above 100 %: workers on equal devices had no whole cores; on an idle machine with one more, they do"
        )
    return {"samples_per_second": rates, "kept": kept, "of_possible": of_possible}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["losses", "straggler"])
    parser.add_argument("--workload", help="a comma list; linear,conv for losses, unet for the straggler")
    parser.add_argument("--device-kind", default="cpu")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--seed", default="0,1,2", help="a comma list")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    console = Console()
    console.print(f"torch {torch.__version__}; load before the run {os.getloadavg()[0]:.2f}")
    found: object
    if given.what == "losses":
        workloads = (given.workload or "linear,conv").split(",")
        seeds = [int(seed) for seed in given.seed.split(",")]
        found = losses(workloads, given.device_kind, given.epochs, given.batch, given.samples, seeds, console)
    else:
        found = straggler(given.workload or "unet", given.repeats, given.steps, console)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
