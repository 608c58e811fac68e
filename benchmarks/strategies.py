"""`mirrored` on two CPU ranks compared with a hand-written DDP loop, in the same run.

    python benchmarks/strategies.py

Both loops run in the same two ranks, each pinned to its core, with the same model, data, buckets and fused optimizer.
Their blocks of steps alternate. Figures are medians over the blocks, in seconds per step.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch.nn.parallel import DistributedDataParallel

from scalewise.core.training_options import Settings
from scalewise.data.dataset import DataRequest
from scalewise.engines.base import Job, Place
from scalewise.engines.mirrored import build
from scalewise.launch.devices import cpu_name
from scalewise.launch.placement import Placement
from scalewise.launch.session import Session
from scalewise.launch.worker import Worker
from scalewise.models.resolve import resolve
from scalewise.runtime.clock import Times, make_clock
from scalewise.runtime.feed import epoch_order
from scalewise.strategies.mirrored import Mirrored

LEARNING_RATE = 5e-4


def both(worker: Worker, name: str, batch: int, repeats: int, seconds: float) -> dict[str, float]:
    """Median seconds per step of Scalewise's engine and of the hand-written loop."""
    steps = {"ours": _ours(worker, name, batch), "hand-written": _hand_written(worker, name, batch)}
    counts = {}
    for which, step in steps.items():
        for _ in range(3):
            step()
        slowest = torch.tensor(_timed(step, 2) / 2)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)  # both ranks must do the same number of steps
        counts[which] = max(2, round(seconds / float(slowest)))
    times: dict[str, list[float]] = {which: [] for which in steps}
    for repeat in range(repeats):
        for which in list(steps) if repeat % 2 else list(reversed(steps)):
            dist.barrier()
            times[which].append(_timed(steps[which], counts[which]) / counts[which])
    return {which: median(blocks) for which, blocks in times.items()}


def _timed(step: Callable[[], None], count: int) -> float:
    started = perf_counter()
    for _ in range(count):
        step()
    return perf_counter() - started


def _ours(worker: Worker, name: str, batch: int) -> Callable[[], None]:
    workload = resolve(name)
    data = workload.data(DataRequest())
    clock = make_clock(worker.device, Times())
    place = Place(worker.rank, worker.world, worker.device)
    engine = build(Mirrored(), Job(workload, data, Settings(batch, None, 1), place, clock))
    batches = [rows for rows in epoch_order(0, 0, len(data)).split(batch) if len(rows) == batch]
    remaining = 0

    def step() -> None:
        nonlocal remaining
        if remaining == 0:
            clock.collect()
            engine.start_epoch(batches)
            remaining = len(batches)
        engine.step()
        remaining -= 1

    return step


def _hand_written(worker: Worker, name: str, batch: int) -> Callable[[], None]:
    workload = resolve(name)
    tensors = workload.data(DataRequest()).tensors
    assert tensors is not None
    inputs, targets = tensors
    rows = epoch_order(0, 0, len(inputs))
    model = DistributedDataParallel(workload.model())
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    share = batch // worker.world
    position = worker.rank * share

    def step() -> None:
        nonlocal position
        chosen = rows[position : position + share]
        position = worker.rank * share if position + 2 * batch > len(rows) else position + batch
        loss = workload.loss(model(inputs[chosen]), targets[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", default="10,100")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a block of steps")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    console = Console(width=110)
    load = os.getloadavg()[0]
    console.print(f"2 cores of {cpu_name()}, torch {torch.__version__}; load before the run {load:.2f}")
    if load > 0.3:
        console.print("[yellow]the machine is busy: ratios are uncertain[/yellow]")
    table = Table("workload", "batch", "mirrored", "hand-written DDP", "hand-written / mirrored", box=None)
    rows = []
    with Session(Placement(2, "cpu")) as session:
        for name in ("linear", "conv"):
            for batch in map(int, options.batch.split(",")):
                seconds = session.run(both, name, batch, options.repeats, options.seconds)[0]
                rows.append({"workload": name, "batch": batch, "seconds_per_step": seconds})
                ratio = seconds["hand-written"] / seconds["ours"]
                cells = (f"{value * 1e3:.1f} ms" for value in seconds.values())
                table.add_row(name, str(batch), *cells, f"{ratio:.3f}")
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
