"""A model whose weights do not fit the device: what `single` says, and how `central-storage` trains it.

    python benchmarks/central_storage.py                                  # 2 GB of weights, a device capped at 1 GB
    python benchmarks/central_storage.py --parameters 64000000 --limit-GB 0.3 --steps 5
    python benchmarks/central_storage.py --device-kind cpu --parameters 2000000     # a rehearsal; nothing is capped

Every run is a process of its own, because the cap (SCALEWISE_MEMORY_LIMIT_GB) and the peak are the process's. The
uncapped single device is the reference for losses and seconds. Exits with 1 if what the runs must show is not so.
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
from scalewise.session.hardware import device_name
from scalewise.step.room import MEMORY_LIMIT

LAYERS = 32
LEARNING_RATE = 1e-5
"""Deep and wide layers move far with every step of Adam."""
SAME_LOSS = 1e-3
"""Of the first loss: the update is rounded differently on the host, and what is learned by heart has a loss near 0."""


def one_run(strategy: str, options: argparse.Namespace) -> dict[str, Any]:
    """In this process; what went wrong is part of the answer."""
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
    said = subprocess.run(
        [sys.executable, __file__, *arguments, "--only", strategy],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def most_apart(run: dict[str, Any], reference: dict[str, Any]) -> float:
    """The largest difference of their losses, as a part of the first one."""
    both = zip(run["losses"], reference["losses"], strict=True)
    largest: float = max(abs(mine - theirs) for mine, theirs in both) / reference["losses"][0]
    return largest


def shortcomings(runs: dict[str, dict[str, Any]], limit_GB: float | None) -> list[str]:
    """What the runs do not show of what they must."""
    free, capped, central = runs["single, uncapped"], runs["single, capped"], runs["central-storage, capped"]
    missing = []
    if limit_GB is not None:
        if free["weights_bytes"] <= limit_GB * 1e9:
            missing.append("the weights fit the cap: raise --parameters or lower --limit-GB")
        if "central-storage" not in capped.get("failed", ""):
            missing.append("the capped single device did not run out of memory with a sentence that helps")
    if "failed" in central:
        return [*missing, f"central-storage failed: {central['failed']}"]
    if not all(math.isfinite(loss) for loss in central["losses"]) or central["losses"][-1] >= central["losses"][0]:
        missing.append("the loss is not finite or did not come down")
    if (apart := most_apart(central, free)) > SAME_LOSS:
        missing.append(f"losses differ from the uncapped device's by up to {apart:.2%} of the first one")
    if limit_GB is not None and central["peak_memory_bytes"] > limit_GB * 1e9:
        missing.append("the peak is above the cap")
    return missing


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
        sys.exit("without the reference there is nothing to compare with")
    cap = f"capped at {limit_GB:g} GB" if limit_GB is not None else "not capped"
    console.print(f"{runs['single, uncapped']['weights_bytes'] / 1e9:.3f} GB of weights; the device is {cap}")
    console.print(table)
    for name, run in runs.items():
        if "phases" in run:
            phases = ", ".join(f"{phase} {seconds * 1e3:.1f}" for phase, seconds in run["phases"].items())
            console.print(f"{name}, ms: {phases}", soft_wrap=True)
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "limit_GB": limit_GB, "runs": runs}, indent=2))
    missing = shortcomings(runs, limit_GB)
    for sentence in missing:
        console.print(f"[red]{sentence}[/red]")
    sys.exit(bool(missing))


if __name__ == "__main__":
    main()
