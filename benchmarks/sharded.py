"""`sharded` and `tensor` on CPU ranks beside hand-written FSDP2 and DTensor loops, blocks of steps interleaved.

    python benchmarks/sharded.py
    python benchmarks/sharded.py --ranks 4 --cells sharded:linear:20

Both loops of a cell live in the same ranks, each pinned to its core, with the same model, data, cuts and fused
optimizer, and take turns; figures are medians over the blocks, in seconds per step. The hand-written loops are torch's
tutorials: `fully_shard` on every layer, and `parallelize_module` with ColwiseParallel and RowwiseParallel.
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

from scalewise.data.data import Data, DataRequest
from scalewise.engines.engine import Job, Place
from scalewise.engines.registry import ENGINES
from scalewise.session.hardware import cpu_name
from scalewise.session.placement import Placement
from scalewise.session.session import Session
from scalewise.session.worker import Worker
from scalewise.step.clock import Times, make_clock
from scalewise.step.settings import Settings
from scalewise.step.shards import epoch_order, shards_of
from scalewise.strategies.registry import strategy_of
from scalewise.workloads.matrices import roles_of
from scalewise.workloads.resolve import resolve
from scalewise.workloads.workload import Workload

CELLS = ("sharded:transformer:8", "sharded:linear:20", "tensor:transformer:8", "tensor:linear:20")
SAMPLES = 200


def both(worker: Worker, cell: str, repeats: int, seconds: float) -> dict[str, float]:
    """Median seconds per step of our engine and of the hand-written loop."""
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
    return {which: median(found) for which, found in times.items()}


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
    left = 0

    def step() -> None:
        nonlocal left
        if left == 0:
            clock.collect()
            engine.start_epoch(batches)
            left = len(batches)
        engine.step()
        left -= 1

    return step


def _hand_written(
    worker: Worker, strategy: str, workload: Workload, data: Data, batches: list[torch.Tensor]
) -> Callable[[], None]:
    """As ours, it takes a batch's rows out of the data in the step that needs them."""
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
    # Fused Adam takes no DTensors beside ordinary tensors.
    cut = [parameter for parameter in model.parameters() if isinstance(parameter, DTensor)]
    rest = [parameter for parameter in model.parameters() if not isinstance(parameter, DTensor)]
    groups = [{"params": each} for each in (cut, rest) if each]
    optimizer = torch.optim.Adam(groups, lr=workload.learning_rate, fused=True)
    assert data.tensors is not None
    inputs, targets = data.tensors
    mine = [shards_of(rows, shares, worker.rank % shares)[0] for rows in batches]
    turn = 0

    def step() -> None:
        nonlocal turn
        shard = mine[turn % len(mine)]
        turn += 1
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
    parser.add_argument("--seconds", type=float, default=1.0, help="of every block")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    console = Console(width=100)
    console.print(f"{cpu_name()}, {options.ranks} ranks, torch {torch.__version__}")
    table = Table("strategy", "workload", "batch", "ours [ms]", "hand-written [ms]", "ours / hand-written", box=None)
    found = {}
    with Session(Placement(options.ranks, "cpu")) as session:
        for cell in options.cells:
            ranks = session.run(both, cell, options.repeats, options.seconds)
            found[cell] = {which: max(rank[which] for rank in ranks) for which in ranks[0]}
            ours, written = found[cell]["ours"], found[cell]["hand-written"]
            print(cell, f"{ours / written:.3f}", file=sys.stderr)
            table.add_row(*_parts(cell), f"{ours * 1e3:.2f}", f"{written * 1e3:.2f}", f"{ours / written:.3f}")
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
