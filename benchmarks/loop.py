"""Our loop on one device beside the study's loop and the best plain PyTorch loops, in one run, repeats interleaved.

    python benchmarks/loop.py                      # linear and conv at batch 10, 20, 100, 600 on this machine
    python benchmarks/loop.py --batch 10,20 --repeats 3 --json loop.json

Every variant lives in a process of its own (on the CPU pinned to one core, one thread) and is asked for a block of
steps in turn, so that drift of the machine hits all alike. Figures are medians over the blocks, in seconds per step.
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

from scalewise.data.data import DataRequest
from scalewise.engines.engine import Job, Place
from scalewise.engines.single import build
from scalewise.session.hardware import device_name
from scalewise.step.allocator import keep_freed_memory
from scalewise.step.clock import Times, make_clock
from scalewise.step.precision import set_precision
from scalewise.step.settings import MOST_PENDING_STEPS, Settings, steps_per_epoch
from scalewise.step.shards import epoch_order
from scalewise.strategies.single import Single
from scalewise.workloads.resolve import resolve
from scalewise.workloads.workload import Workload

Step = Callable[[], None]
LEARNING_RATE = 5e-4
LONG_STEP_SECONDS = 5.0
"""One such step is warm-up enough."""


def ours(workload: Workload, batch: int, device: torch.device) -> Step:
    """Scalewise as `train` runs it, its clock included."""
    data = workload.data(DataRequest())
    clock = make_clock(device, Times())
    engine = build(Single(), Job(workload, data, Settings(batch, None, 1), Place(0, 1, device), clock))
    left = 0
    epoch = pending = 0

    def step() -> None:
        nonlocal left, epoch, pending
        if left == 0:
            if pending > MOST_PENDING_STEPS - steps_per_epoch(len(data), batch):
                clock.close()
                engine.losses()
                clock.collect()
                pending = 0
            batches = list(epoch_order(0, epoch, len(data)).split(batch))
            whole = [rows for rows in batches if len(rows) == batch]
            engine.start_epoch(whole)
            left, epoch = len(whole), epoch + 1
        engine.step()
        left -= 1
        pending += 1

    return step


def study(workload: Workload, batch: int, device: torch.device) -> Step:
    """The study's loop: items one by one through a DataLoader (already decoded, which flatters it), plain Adam."""
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
    """The best eager loop: data on the device, one gather per batch, fused Adam, gradients set to none, no waiting."""
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
    """The same eager loop, given our allocator setting."""
    keep_freed_memory()
    return plain(workload, batch, device)


def plain_graph(workload: Workload, batch: int, device: torch.device) -> Step:
    """The best loop with a hand-captured CUDA graph: static row numbers, one copy and one replay per step."""
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
    """A process of one variant: told a number of steps, answers with their seconds."""
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
        pipes[name], theirs = spawn.Pipe()
        processes.append(spawn.Process(target=serve, args=(theirs, name, workload, batch, device), daemon=True))
        processes[-1].start()

    def ask(name: str, steps: int) -> float:
        pipes[name].send(steps)
        return float(pipes[name].recv())

    steps = {}
    for name in names:
        few = 4 if device.type == "cuda" else 1
        a_step = ask(name, few) / few
        if a_step < LONG_STEP_SECONDS:
            ask(name, 2)
            a_step = ask(name, few) / few
        steps[name] = max(1, round(seconds / a_step))
    times: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        for name in names if repeat % 2 else reversed(names):
            times[name].append(ask(name, steps[name]) / steps[name])
    for name in names:
        pipes[name].send(0)
    for process in processes:
        process.join()
    return {name: median(found) for name, found in times.items()}


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
        console.print("[yellow]the machine is busy: read the ratios with care[/yellow]")
    table = Table(box=None, header_style="dim")
    for title in ("workload", "batch", "ours", "study", "plain", "best plain", "vs study", "vs plain", "vs best plain"):
        table.add_column(title, justify="left" if title == "workload" else "right")
    rows = []
    for workload in options.workload.split(","):
        for batch in map(int, options.batch.split(",")):
            print(f"  {workload} at batch {batch} ...", file=sys.stderr)
            found = measure(workload, batch, options.repeats, options.seconds, device)
            best = min(value for name, value in found.items() if name.startswith("plain"))
            rows.append({"workload": workload, "batch": batch, "seconds_per_step": found})
            table.add_row(
                workload,
                str(batch),
                *(f"{value * 1e3:.3f} ms" for value in (found["ours"], found["study"], found["plain"], best)),
                *(f"{other / found['ours']:.2f}x" for other in (found["study"], found["plain"], best)),
            )
    console.print(table)
    console.print(
        "vs: how many times faster ours is; best plain: the fastest plain loop (hand-captured graph, kept memory)"
    )
    if options.json:
        options.json.write_text(
            json.dumps({"device": device_name(device), "torch": torch.__version__, "rows": rows}, indent=2)
        )


if __name__ == "__main__":
    main()
