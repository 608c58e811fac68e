"""Memory per device, planned against measured: every strategy on several workloads.

    python benchmarks/memory.py                                  # two cpu devices, a few seconds a cell
    python benchmarks/memory.py --device-kind slice              # two halves of one GPU; real GPUs: cuda
    python benchmarks/memory.py --workload unet:full --batch 32 --strategy mirrored --strategy pipeline

Planned memory is counted from tensors without values, plus the workspace of libraries, which is measured operation by
operation (runtime/layer_memory.py, runtime/workspace_memory.py, Strategy.rank_memory). Measured memory is
`torch.cuda.max_memory_allocated` on a GPU; on a CPU it is the peak of the memory allocated with malloc in the second
step (runtime/device_memory.py). Exits with 1 if a rank is off by more than --within percent.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import scalewise
from scalewise.core.units import bytes_text
from scalewise.launch.devices import device_name
from scalewise.strategies.registry import STRATEGIES

WORKLOADS = {"linear": 32, "conv": 8, "unet": 32, "unet:width=32,depth=4": 16, "transformer": 16}
"""Workload -> global batch on CPUs; on GPUs the batch is ten times as large."""
NOT_MEASURED_ON_CPU = {"parameter-server-async"}
"""Strategies whose memory is not measured on CPUs, because their workers run another training loop."""
STEPS = 10


def one_run(workload: str, strategy: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train once and return the memory of every rank, or the reason why the run failed."""
    batch = options.batch or WORKLOADS.get(workload, 16) * (1 if options.device_kind == "cpu" else 10)
    try:
        result = scalewise.train(
            workload,
            strategy=strategy,
            devices=1 if strategy == "single" else options.devices,
            device_kind=options.device_kind,
            batch=batch,
            samples=batch * 4,
            steps=STEPS,
            optimizer=options.optimizer,
            precision=options.precision,
            execution="eager",
        )
    except (scalewise.RunFailed, scalewise.UserError) as error:
        return {"workload": workload, "strategy": strategy, "batch": batch, "reason": str(error)}
    assert result.memory is not None
    memory = result.to_json()["memory"]
    errors = [
        100 * (planned / measured - 1)
        for planned, measured in zip(memory["planned_by_rank"], memory["measured_by_rank"], strict=False)
        if measured
    ]
    return {"workload": workload, "strategy": strategy, "batch": batch, **memory, "error_percent": errors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device-kind", choices=["cpu", "cuda", "slice"], default="cpu")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--workload", action="append", help=f"default: {', '.join(WORKLOADS)}")
    parser.add_argument("--strategy", action="append", help="default: all")
    parser.add_argument("--batch", type=int, help="global; default: by workload")
    parser.add_argument("--optimizer")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="fp32")
    parser.add_argument("--within", type=float, default=15.0, help="percent")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    strategies = options.strategy or [
        name for name in STRATEGIES if options.device_kind != "cpu" or name not in NOT_MEASURED_ON_CPU
    ]
    console = Console(width=130)
    device = torch.device("cpu" if options.device_kind == "cpu" else "cuda")
    console.print(f"{options.devices} {options.device_kind} devices, {device_name(device)}, torch {torch.__version__}")
    table = Table("workload", "strategy", "batch", "planned", "measured", "error of each rank", "made of", box=None)
    runs, off = [], []
    for workload in options.workload or WORKLOADS:
        for strategy in strategies:
            run = one_run(workload, strategy, options)
            runs.append(run)
            if "reason" in run:
                table.add_row(workload, strategy, str(run["batch"]), "-", "-", "-", run["reason"])
                continue
            errors = run["error_percent"]
            if not errors or max(map(abs, errors)) > options.within:
                off.append(run)
            parts = sorted(run["parts"].items(), key=lambda part: -part[1])
            table.add_row(
                workload,
                strategy,
                str(run["batch"]),
                bytes_text(run["planned"]) if run["planned"] else "-",
                bytes_text(run["measured"]) if run["measured"] else "-",
                ", ".join(f"{error:+.1f} %" for error in errors) or "not measured",
                ", ".join(f"{name} {bytes_text(size)}" for name, size in parts[:3] if size),
            )
    console.print(table)
    errors = [error for run in runs for error in run.get("error_percent", [])]
    if errors:
        within = sum(abs(error) <= options.within for error in errors)
        worst = max(errors, key=abs)
        console.print(f"{within} of {len(errors)} ranks within {options.within:g} %; worst {worst:+.1f} %")
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "runs": runs}, indent=2))
    sys.exit(bool(off))


if __name__ == "__main__":
    main()
