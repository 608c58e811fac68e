"""Asynchronous compared with synchronous parameter servers: loss after equal samples, and the cost of a straggler.

    python benchmarks/asynchronous.py losses --device-kind slice   # both speech models, 4 workers
    python benchmarks/asynchronous.py straggler                    # U-Net, 2 CPU workers, one at half speed

Losses are means over the samples of the last epoch, each before its update. Throughput is samples per second of wall
time after the warm-up. Runs with and without the straggler alternate.
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
from scalewise.formats.train_result import TrainResult

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
        losses_by_strategy: dict[str, list[float]] = {SYNCHRONOUS: [], ASYNCHRONOUS: []}
        settings = workload, str(epochs), str(batch)
        for seed in seeds:
            row: dict[str, object] = {"workload": workload, "epochs": epochs, "batch": batch, "seed": seed}
            staleness = ""
            for strategy, final_losses in losses_by_strategy.items():
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
                final_losses.append(last_epoch(result, epochs))
                seconds = perf_counter() - started
                console.print(f"  {workload}, {strategy}: {final_losses[-1]:.4f} in {seconds:.0f} s", style="dim")
                if result.staleness:
                    row["staleness"] = asdict(result.staleness)
                    staleness = f"{result.staleness.mean:.2f}, at most {result.staleness.max}"
            rows.append(row)
            of_seed = (final_losses[-1] for final_losses in losses_by_strategy.values())
            table.add_row(*settings, str(seed), *_difference(*of_seed), staleness)
        table.add_row(*settings, "mean", *_difference(*map(mean, losses_by_strategy.values())), end_section=True)
    console.print(table)
    console.print(f"target: asynchronous at most {MOST_DIFFERENCE:.0%} above synchronous, in the mean over seeds")
    return rows


def _difference(synchronous: float, asynchronous: float) -> tuple[str, str, str]:
    return f"{synchronous:.4f}", f"{asynchronous:.4f}", f"{asynchronous / synchronous - 1:+.1%}"


def last_epoch(result: TrainResult, epochs: int) -> float:
    """Mean loss over the samples of the last epoch of a run of `epochs` epochs."""
    total = sum(samples for _, _, samples in result.curve)
    remaining, weighted_sum = total / epochs, 0.0
    for _, loss, samples in reversed(result.curve):
        counted = min(samples, remaining)
        weighted_sum += loss * counted
        remaining -= counted
    return weighted_sum / (total / epochs)


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
    medians = {name: median(values) for name, values in rates.items()}
    kept = {
        strategy: medians[f"{strategy}, one at half speed"] / medians[strategy]
        for strategy in (SYNCHRONOUS, ASYNCHRONOUS)
    }
    # With one of two workers at half speed, the devices can reach at most 1.5 / 2 of their throughput.
    of_possible = {strategy: share / 0.75 for strategy, share in kept.items()}
    table = Table(title=f"{workload}, 2 workers, samples per second", title_justify="left")
    for name in ("strategy", "equal speed", "one at half speed", "kept", "of the possible"):
        table.add_column(name, justify="right")
    for strategy in (SYNCHRONOUS, ASYNCHRONOUS):
        table.add_row(
            strategy, f"{medians[strategy]:.0f}", f"{medians[f'{strategy}, one at half speed']:.0f}",
            f"{kept[strategy]:.0%}", f"{of_possible[strategy]:.0%}",
        )  # fmt: skip
    console.print(table)
    console.print(f"target: asynchronous keeps at least {LEAST_THROUGHPUT:.0%} of the possible throughput")
    if max(of_possible.values()) > 1.05:
        console.print(
            "above 100 %: the runs at equal speed had less than a whole core per worker; repeat on an idle machine "
            "with at least one core more than workers"
        )
    return {"samples_per_second": rates, "kept": kept, "of_possible": of_possible}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["losses", "straggler"])
    parser.add_argument("--workload", help="comma-separated; default linear,conv for losses, unet for straggler")
    parser.add_argument("--device-kind", default="cpu")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--seed", default="0,1,2", help="comma-separated seeds")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    console = Console()
    console.print(f"torch {torch.__version__}; load before the run {os.getloadavg()[0]:.2f}")
    figures: object
    if options.what == "losses":
        workloads = (options.workload or "linear,conv").split(",")
        seeds = [int(seed) for seed in options.seed.split(",")]
        figures = losses(workloads, options.device_kind, options.epochs, options.batch, options.samples, seeds, console)
    else:
        figures = straggler(options.workload or "unet", options.repeats, options.steps, console)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
