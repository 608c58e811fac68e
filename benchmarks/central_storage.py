"""Train a model whose weights do not fit the device: `single` must fail, `central-storage` must train it.

    python benchmarks/central_storage.py                                  # 2 GB of weights, a memory limit of 1 GB
    python benchmarks/central_storage.py --parameters 64000000 --limit-GB 0.3 --steps 5
    python benchmarks/central_storage.py --device-kind cpu --parameters 2000000     # without a limit, to try the script

Every run is a separate process, because the limit (SCALEWISE_MEMORY_LIMIT_GB) and the peak memory belong to a process.
A single device without a limit is the reference for losses and seconds. Exits with 1 if a run does not behave as
expected.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import scalewise
from scalewise.launch.devices import device_name
from scalewise.runtime.device_memory import MEMORY_LIMIT

LAYERS = 32
LEARNING_RATE = 1e-5
"""Small, because the outputs of deep and wide layers change much with every step of Adam."""
SAME_LOSS = 1e-3
"""Largest difference of losses, relative to the first loss: updates on the host round differently, and the last losses
are close to 0."""


def one_run(strategy: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train in this process; return its figures, or the error message if the run fails."""
    try:
        result = scalewise.train(
            f"synthetic:parameters={options.parameters},flops={2 * options.parameters},layers={LAYERS}",
            strategy=strategy,
            device_kind=options.device_kind,
            batch=options.batch,
            samples=options.batch * 4,
            steps=options.steps,
            learning_rate=LEARNING_RATE,
            execution="eager",
        )
    except scalewise.RunFailed as failed:
        return {"failed": str(failed)}
    return {
        "losses": [loss for _, loss, _ in result.curve],
        "step_seconds": result.step_seconds.median,
        "phases": result.phases,
        "peak_memory_bytes": result.peak_memory_bytes,
        "weights_bytes": 4 * result.parameters,
        "bytes_per_step": result.to_json()["bytes_per_step"],
    }


def in_a_process(strategy: str, limit_GB: float | None, arguments: list[str]) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != MEMORY_LIMIT}
    if limit_GB is not None:
        environment[MEMORY_LIMIT] = str(limit_GB)
    process = subprocess.run(
        [sys.executable, __file__, *arguments, "--only", strategy],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: dict[str, Any] = json.loads(process.stdout)
    return figures


def largest_difference(run: dict[str, Any], reference: dict[str, Any]) -> float:
    """Largest difference of two runs' losses, relative to the first loss."""
    pairs = zip(run["losses"], reference["losses"], strict=True)
    largest: float = max(abs(loss - expected) for loss, expected in pairs) / reference["losses"][0]
    return largest


def failed_checks(runs: dict[str, dict[str, Any]], limit_GB: float | None) -> list[str]:
    """One sentence for every expectation that the runs do not meet."""
    reference, limited, central = runs["single, uncapped"], runs["single, capped"], runs["central-storage, capped"]
    failures = []
    if limit_GB is not None:
        if reference["weights_bytes"] <= limit_GB * 1e9:
            failures.append("the weights fit the memory limit: raise --parameters or lower --limit-GB")
        if "central-storage" not in limited.get("failed", ""):
            failures.append("the limited single device did not fail with a message that suggests central-storage")
    if "failed" in central:
        return [*failures, f"central-storage failed: {central['failed']}"]
    if not all(math.isfinite(loss) for loss in central["losses"]) or central["losses"][-1] >= central["losses"][0]:
        failures.append("the loss is not finite or did not decrease")
    if (difference := largest_difference(central, reference)) > SAME_LOSS:
        failures.append(f"losses differ from those without a limit by up to {difference:.2%} of the first loss")
    if limit_GB is not None and central["peak_memory_bytes"] > limit_GB * 1e9:
        failures.append("the peak memory is above the limit")
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device-kind", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--parameters", type=int, default=512_000_000)
    parser.add_argument("--limit-GB", dest="limit_GB", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(one_run(options.only, options)))
        return
    limit_GB = options.limit_GB if options.device_kind == "cuda" else None
    console = Console(width=120)
    console.print(f"{device_name(torch.device(options.device_kind))}, torch {torch.__version__}")
    runs = {
        "single, uncapped": in_a_process("single", None, sys.argv[1:]),
        "single, capped": in_a_process("single", limit_GB, sys.argv[1:]),
        "central-storage, capped": in_a_process("central-storage", limit_GB, sys.argv[1:]),
        "central-storage:prefetch=0, capped": in_a_process("central-storage:prefetch=0", limit_GB, sys.argv[1:]),
    }
    table = Table("run", "peak GB", "s per step", "first loss", "last loss", "copied GB per step", box=None)
    for name, run in runs.items():
        if "failed" in run:
            console.print(f"{name}: {run['failed']}", soft_wrap=True)
            continue
        peak = run["peak_memory_bytes"]
        table.add_row(
            name,
            f"{peak / 1e9:.3f}" if peak else "-",
            f"{run['step_seconds']:.4f}",
            f"{run['losses'][0]:.5f}",
            f"{run['losses'][-1]:.5f}",
            f"{run['bytes_per_step']['traced'] / 1e9:.3f}",
        )
    if "failed" in runs["single, uncapped"]:
        sys.exit("the reference run failed, so there is nothing to compare with")
    limit = f"a memory limit of {limit_GB:g} GB" if limit_GB is not None else "no memory limit"
    console.print(f"{runs['single, uncapped']['weights_bytes'] / 1e9:.3f} GB of weights; {limit}")
    console.print(table)
    for name, run in runs.items():
        if "phases" in run:
            phases = ", ".join(f"{phase} {seconds * 1e3:.1f}" for phase, seconds in run["phases"].items())
            console.print(f"{name}, ms per step: {phases}", soft_wrap=True)
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "limit_GB": limit_GB, "runs": runs}, indent=2))
    failures = failed_checks(runs, limit_GB)
    for sentence in failures:
        console.print(f"[red]{sentence}[/red]")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
