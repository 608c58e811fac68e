"""Scalewise's loop on one device compared with the study's loop and the best plain PyTorch loops, in the same run.

    python benchmarks/loop.py                      # linear and conv at batch 10, 20, 100, 600 on this machine
    python benchmarks/loop.py --batch 10,20 --repeats 3 --json loop.json

Every variant runs in its own process (on the CPU pinned to one core, one thread). Blocks of steps alternate between the
variants, so that drift of the machine affects all of them. Figures are medians over the blocks, in seconds per step.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset

from scalewise.core.training_options import MOST_PENDING_STEPS, Settings, steps_per_epoch
from scalewise.data.dataset import DataRequest
from scalewise.engines.base import Job, Place
from scalewise.engines.single import build
from scalewise.launch.devices import device_name
from scalewise.models.resolve import resolve
from scalewise.models.workload import Workload
from scalewise.runtime.clock import Times, make_clock
from scalewise.runtime.feed import epoch_order
from scalewise.runtime.optimizers import set_precision
from scalewise.runtime.process_settings import keep_freed_memory
from scalewise.strategies.single import Single

Step = Callable[[], None]
LEARNING_RATE = 5e-4
LONG_STEP_SECONDS = 5.0
"""For steps longer than this, one step of warm-up is enough."""


def ours(workload: Workload, batch: int, device: torch.device) -> Step:
    """Scalewise's loop as `train` runs it, including its clock."""
    data = workload.data(DataRequest())
    clock = make_clock(device, Times())
    engine = build(Single(), Job(workload, data, Settings(batch, None, 1), Place(0, 1, device), clock))
    remaining = 0
    epoch = pending = 0

    def step() -> None:
        nonlocal remaining, epoch, pending
        if remaining == 0:
            if pending > MOST_PENDING_STEPS - steps_per_epoch(len(data), batch):
                clock.close()
                engine.losses()
                clock.collect()
                pending = 0
            batches = list(epoch_order(0, epoch, len(data)).split(batch))
            whole = [rows for rows in batches if len(rows) == batch]
            engine.start_epoch(whole)
            remaining, epoch = len(whole), epoch + 1
        engine.step()
        remaining -= 1
        pending += 1

    return step


def study(workload: Workload, batch: int, device: torch.device) -> Step:
    """The study's loop: samples one by one through a DataLoader (already decoded, which favours it), plain Adam."""
    tensors = workload.data(DataRequest()).tensors
    assert tensors is not None
    loader = DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=True, drop_last=True)
    model = workload.model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def forever() -> Iterator[list[torch.Tensor]]:
        while True:
            yield from loader

    batches = forever()

    def step() -> None:
        inputs, targets = (tensor.to(device) for tensor in next(batches))
        optimizer.zero_grad()
        loss = workload.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()

    return step


def plain(workload: Workload, batch: int, device: torch.device) -> Step:
    """Best eager loop: data on the device, one gather per batch, fused Adam, no synchronisation."""
    inputs, targets, rows = _resident(workload, device)
    model = workload.model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    position = 0

    def step() -> None:
        nonlocal position
        chosen = rows[position : position + batch]
        position = 0 if position + 2 * batch > len(rows) else position + batch
        loss = workload.loss(model(inputs.index_select(0, chosen)), targets.index_select(0, chosen))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def plain_kept(workload: Workload, batch: int, device: torch.device) -> Step:
    """The eager loop `plain` with Scalewise's allocator setting."""
    keep_freed_memory()
    return plain(workload, batch, device)


def plain_graph(workload: Workload, batch: int, device: torch.device) -> Step:
    """Best loop with a hand-captured CUDA graph: static row numbers, one copy and one replay per step."""
    inputs, targets, rows = _resident(workload, device)
    model = workload.model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True, capturable=True)
    chosen = rows[:batch].clone()

    def work() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = workload.loss(model(inputs.index_select(0, chosen)), targets.index_select(0, chosen))
        loss.backward()
        optimizer.step()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    position = 0

    def step() -> None:
        nonlocal position
        chosen.copy_(rows[position : position + batch])
        position = 0 if position + 2 * batch > len(rows) else position + batch
        graph.replay()

    return step


def _resident(workload: Workload, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tensors = workload.data(DataRequest()).tensors
    assert tensors is not None
    inputs, targets = (tensor.to(device) for tensor in tensors)
    return inputs, targets, epoch_order(0, 0, len(inputs)).to(device)


VARIANTS = {
    "ours": ours,
    "study": study,
    "plain": plain,
    "plain, kept memory": plain_kept,
    "plain graph": plain_graph,
}


def serve(pipe: Connection, variant: str, workload: str, batch: int, device: torch.device) -> None:
    """Process of one variant: receive a number of steps, run them and send back their seconds, until 0 arrives."""
    if device.type == "cpu":
        torch.set_num_threads(1)
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        if variant == "ours":
            keep_freed_memory()
    set_precision("fp32", device)
    torch.manual_seed(0)
    step = VARIANTS[variant](resolve(workload), batch, device)
    while steps := pipe.recv():
        started = perf_counter()
        for _ in range(steps):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        pipe.send(perf_counter() - started)


def measure(workload: str, batch: int, repeats: int, seconds: float, device: torch.device) -> dict[str, float]:
    """Median seconds per step of each variant."""
    spawn = multiprocessing.get_context("spawn")
    names = [name for name in VARIANTS if (name == "plain graph") <= (device.type == "cuda")]
    names = [name for name in names if (name == "plain, kept memory") <= (device.type == "cpu")]
    pipes, processes = {}, []
    for name in names:
        pipes[name], far_end = spawn.Pipe()
        processes.append(spawn.Process(target=serve, args=(far_end, name, workload, batch, device), daemon=True))
        processes[-1].start()

    def seconds_of(name: str, steps: int) -> float:
        pipes[name].send(steps)
        return float(pipes[name].recv())

    steps = {}
    for name in names:
        few = 4 if device.type == "cuda" else 1
        step_seconds = seconds_of(name, few) / few
        if step_seconds < LONG_STEP_SECONDS:
            seconds_of(name, 2)
            step_seconds = seconds_of(name, few) / few
        steps[name] = max(1, round(seconds / step_seconds))
    times: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        for name in names if repeat % 2 else reversed(names):
            times[name].append(seconds_of(name, steps[name]) / steps[name])
    for name in names:
        pipes[name].send(0)
    for process in processes:
        process.join()
    return {name: median(blocks) for name, blocks in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="linear,conv")
    parser.add_argument("--batch", default="10,20,100,600")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a block of steps")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    load = os.getloadavg()[0]
    console = Console(width=120)
    console.print(f"{device_name(device)}, torch {torch.__version__}; load before the run {load:.2f}")
    if load > 0.3:
        console.print("[yellow]the machine is busy: ratios are uncertain[/yellow]")
    table = Table(box=None, header_style="dim")
    titles = ("workload", "batch", "scalewise", "study", "plain", "best plain", "vs study", "vs plain", "vs best plain")
    for title in titles:
        table.add_column(title, justify="left" if title == "workload" else "right")
    rows = []
    for workload in options.workload.split(","):
        for batch in map(int, options.batch.split(",")):
            print(f"  {workload} at batch {batch} ...", file=sys.stderr)
            seconds = measure(workload, batch, options.repeats, options.seconds, device)
            best = min(value for name, value in seconds.items() if name.startswith("plain"))
            rows.append({"workload": workload, "batch": batch, "seconds_per_step": seconds})
            table.add_row(
                workload,
                str(batch),
                *(f"{value * 1e3:.3f} ms" for value in (seconds["ours"], seconds["study"], seconds["plain"], best)),
                *(f"{other / seconds['ours']:.2f}x" for other in (seconds["study"], seconds["plain"], best)),
            )
    console.print(table)
    console.print("vs: speedup of scalewise; best plain: the fastest plain loop, with a CUDA graph or kept memory")
    if options.json:
        options.json.write_text(
            json.dumps({"device": device_name(device), "torch": torch.__version__, "rows": rows}, indent=2)
        )


if __name__ == "__main__":
    main()
