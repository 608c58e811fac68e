"""`sharded` and `tensor` on CPU ranks compared with hand-written FSDP2 and DTensor loops, in the same run.

    python benchmarks/sharded.py
    python benchmarks/sharded.py --ranks 4 --cells sharded:linear:20

Both loops of a cell run in the same ranks, each pinned to its core, with the same model, data, sharding and fused
optimizer. Their blocks of steps alternate. Figures are medians over the blocks, in seconds per step. The hand-written
loops follow torch's tutorials: `fully_shard` on every layer, and `parallelize_module` with ColwiseParallel and
RowwiseParallel.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from scalewise.core.training_options import Settings
from scalewise.data.dataset import Data, DataRequest
from scalewise.engines.base import Job, Place
from scalewise.engines.registry import ENGINES
from scalewise.launch.devices import cpu_name
from scalewise.launch.placement import Placement
from scalewise.launch.session import Session
from scalewise.launch.worker import Worker
from scalewise.models.footprint import roles_of
from scalewise.models.resolve import resolve
from scalewise.models.workload import Workload
from scalewise.runtime.clock import Times, make_clock
from scalewise.runtime.feed import epoch_order, shards_of
from scalewise.strategies.registry import strategy_of

CELLS = ("sharded:transformer:8", "sharded:linear:20", "tensor:transformer:8", "tensor:linear:20")
SAMPLES = 200


def both(worker: Worker, cell: str, repeats: int, seconds: float) -> dict[str, float]:
    """Median seconds per step of Scalewise's engine and of the hand-written loop."""
    strategy, name, batch = _parts(cell)
    workload = resolve(name)
    data = workload.data(DataRequest(samples=SAMPLES))
    batches = [rows for rows in epoch_order(0, 0, len(data)).split(int(batch)) if len(rows) == int(batch)]
    torch.manual_seed(0)
    ours = _ours(worker, strategy, workload, data, batches)
    torch.manual_seed(0)
    written = _hand_written(worker, strategy, workload, data, batches)
    steps = {"ours": ours, "hand-written": written}
    counts = {}
    for which, step in steps.items():
        for _ in range(3):
            step()
        slowest = torch.tensor(_timed(step, 2) / 2)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)  # all ranks must do the same number of steps
        counts[which] = max(2, round(seconds / float(slowest)))
    times: dict[str, list[float]] = {which: [] for which in steps}
    for repeat in range(repeats):
        for which in list(steps) if repeat % 2 else list(reversed(steps)):
            dist.barrier()
            times[which].append(_timed(steps[which], counts[which]) / counts[which])
    return {which: median(blocks) for which, blocks in times.items()}


def _parts(cell: str) -> tuple[str, str, str]:
    """'tensor:transformer:layers=2:8' -> ('tensor', 'transformer:layers=2', '8')."""
    strategy, _, rest = cell.partition(":")
    name, _, batch = rest.rpartition(":")
    return strategy, name, batch


def _timed(step: Callable[[], None], count: int) -> float:
    started = perf_counter()
    for _ in range(count):
        step()
    return perf_counter() - started


def _ours(
    worker: Worker, strategy: str, workload: Workload, data: Data, batches: list[torch.Tensor]
) -> Callable[[], None]:
    clock = make_clock(worker.device, Times())
    place = Place(worker.rank, worker.world, worker.device)
    job = Job(workload, data, Settings(len(batches[0]), None, 1), place, clock)
    engine = ENGINES[strategy](strategy_of(strategy), job)
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


def _hand_written(
    worker: Worker, strategy: str, workload: Workload, data: Data, batches: list[torch.Tensor]
) -> Callable[[], None]:
    """Training step of a hand-written loop. Like the engine, it gathers the rows of a batch within the step."""
    model = workload.model()
    mesh = init_device_mesh("cpu", (worker.world,))
    shares = worker.world if strategy == "sharded" else 1
    if strategy == "sharded":
        for layer in model.children():
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        parallelize_module(model, mesh, _styles(model))
    # Fused Adam refuses a group with both DTensors and ordinary tensors.
    sharded = [parameter for parameter in model.parameters() if isinstance(parameter, DTensor)]
    replicated = [parameter for parameter in model.parameters() if not isinstance(parameter, DTensor)]
    groups = [{"params": parameters} for parameters in (sharded, replicated) if parameters]
    optimizer = torch.optim.Adam(groups, lr=workload.learning_rate, fused=True)
    assert data.tensors is not None
    inputs, targets = data.tensors
    shards = [shards_of(rows, shares, worker.rank % shares)[0] for rows in batches]
    count = 0

    def step() -> None:
        nonlocal count
        shard = shards[count % len(shards)]
        count += 1
        output = model(inputs[shard.rows])
        (workload.loss(output, targets[shard.rows]) * (shard.weight * shares)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _styles(model: nn.Module) -> dict[str, ParallelStyle]:
    return {
        name: ColwiseParallel() if role.kind == "columns" else RowwiseParallel()
        for name, role in roles_of(model).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", default=CELLS, help="strategy:workload:batch")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a block of steps")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    console = Console(width=100)
    console.print(f"{cpu_name()}, {options.ranks} ranks, torch {torch.__version__}")
    columns = ("strategy", "workload", "batch", "scalewise (ms)", "hand-written (ms)", "scalewise / hand-written")
    table = Table(*columns, box=None)
    seconds_by_cell = {}
    with Session(Placement(options.ranks, "cpu")) as session:
        for cell in options.cells:
            ranks = session.run(both, cell, options.repeats, options.seconds)
            seconds_by_cell[cell] = {which: max(rank[which] for rank in ranks) for which in ranks[0]}
            ours, written = seconds_by_cell[cell]["ours"], seconds_by_cell[cell]["hand-written"]
            print(cell, f"{ours / written:.3f}", file=sys.stderr)
            table.add_row(*_parts(cell), f"{ours * 1e3:.2f}", f"{written * 1e3:.2f}", f"{ours / written:.3f}")
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps(seconds_by_cell, indent=2))


if __name__ == "__main__":
    main()
