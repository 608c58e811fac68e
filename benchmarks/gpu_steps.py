"""Time whole training steps on one GPU: workloads x batches x precisions x eager, CUDA graph and compiled.

    python benchmarks/gpu_steps.py steps.jsonl                       # all, about five minutes on an H200
    python benchmarks/gpu_steps.py steps.jsonl --device cpu --tiny   # check the script without a GPU

Every cell is written when it is measured, as one JSON line. Inputs are random numbers, already on the device. Eager
and captured steps are timed first, one after another. Then one process per workload and precision compiles its step;
when all are done, they are timed in turn. `scalewise validate` scores the table
src/scalewise/published/h200_steps.csv, which `--table FILE` writes.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from scalewise.core.errors import UserError
from scalewise.data.dataset import DataRequest
from scalewise.models.resolve import resolve
from scalewise.models.workload import Workload
from scalewise.runtime.optimizers import autocast, make_optimizer, set_precision

RESNET = "examples/resnet50.py:resnet50"
WORKLOADS: dict[str, tuple[int, int]] = {
    "linear": (10, 100),
    "conv": (10, 100),
    "unet": (16, 128),
    "unet:full": (4, 16),
    RESNET: (32, 128),
    "transformer": (16, 256),
    "hf:gpt2": (8, 64),
    "gpt2": (2, 8),
}
TINY = {"unet": (2, 3), "transformer:layers=1,width=16": (2, 3)}
PRECISIONS = ("fp32", "tf32", "bf16")
CHANNELS_LAST = (RESNET, "unet:full")
"""Workloads that are also timed with the memory format channels_last, in bf16."""
NOT_COMPILED = ("unet",)
BLOCKS, BLOCK_SECONDS, MOST_STEPS = 5, 0.06, 100
COLUMNS = (
    "workload", "batch", "precision", "execution", "memory_format", "seconds", "slowest_seconds", "enqueue_seconds",
    "compile_seconds", "peak_memory_bytes",
)  # fmt: skip


class Step:
    """One training step of a workload on random data."""

    def __init__(
        self, workload: Workload, batch: int, precision: str, device: torch.device, channels_last: bool = False
    ) -> None:
        torch.manual_seed(0)
        set_precision(precision if device.type == "cuda" or precision != "tf32" else "fp32", device)  # type: ignore[arg-type]
        self.workload, self.precision, self.device = workload, precision, device
        self.model = workload.model().to(device)
        inputs, targets = workload.data(DataRequest(samples=2)).example()
        shape = (batch, *inputs.shape)
        if inputs.is_floating_point():
            self.inputs = torch.randn(shape, device=device)
        else:
            self.inputs = torch.randint(0, 200, shape, device=device)
        self.targets = torch.zeros((batch, *targets.shape), dtype=targets.dtype, device=device)
        if channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.inputs = self.inputs.contiguous(memory_format=torch.channels_last)
        cuda = device.type == "cuda"
        self.optimizer = make_optimizer(
            workload.optimizer, self.model.parameters(), 1e-5, captured=cuda and workload.optimizer != "sgd"
        )
        self.loss: Callable[[Tensor, Tensor], Tensor] = self._loss

    def _loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.workload.loss(self.model(inputs), targets)

    def compile(self) -> None:
        self.loss = torch.compile(self._loss, dynamic=False)

    def __call__(self) -> None:
        with autocast(self.precision, self.device):  # type: ignore[arg-type]
            loss = self.loss(self.inputs, self.targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """Capture a step that has run before in a CUDA graph and return the replay."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        step()
    return graph.replay


def timed(step: Callable[[], None], device: torch.device) -> dict[str, float]:
    """Median and slowest seconds per step over blocks of steps, and the host's seconds to enqueue a step."""
    for _ in range(3):
        step()
    first = _block(step, 2, device)[0]
    steps = max(2, min(MOST_STEPS, int(BLOCK_SECONDS / first)))
    blocks = [_block(step, steps, device) for _ in range(BLOCKS if first < 1 else 2)]
    seconds = sorted(block[0] for block in blocks)
    return {
        "seconds": median(seconds),
        "slowest_seconds": seconds[-1],
        "enqueue_seconds": median(block[1] for block in blocks),
    }


def _block(step: Callable[[], None], steps: int, device: torch.device) -> tuple[float, float]:
    if device.type != "cuda":
        started = time.perf_counter()
        for _ in range(steps):
            step()
        seconds = (time.perf_counter() - started) / steps
        return seconds, seconds
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    started = time.perf_counter()
    before.record()
    for _ in range(steps):
        step()
    after.record()
    enqueued = (time.perf_counter() - started) / steps
    after.synchronize()
    return before.elapsed_time(after) / 1e3 / steps, enqueued


class Writer:
    """Writes cells as JSON lines, each flushed."""

    def __init__(self, path: Path, **about: Any) -> None:
        self.path, self.about = path, about

    def __call__(self, **cell: Any) -> None:
        with self.path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({**cell, **self.about}) + "\n")


def time_plain(write: Writer, workloads: dict[str, tuple[int, int]], device: torch.device, deadline: float) -> None:
    """Eager steps and CUDA graphs; a workload that fails is written as failed."""
    for name, batches in workloads.items():
        try:
            workload = resolve(name, "3x224x224", 1000) if name.endswith("resnet50") else resolve(name)
        except UserError as error:
            write(workload=name, reason=str(error))
            continue
        for batch in batches:
            for precision in PRECISIONS:
                formats = ["contiguous"] + ["channels_last"] * (name in CHANNELS_LAST and precision == "bf16")
                for memory_format in formats:
                    if time.monotonic() > deadline:
                        write(workload=name, reason="out of time")
                        return
                    cell = {
                        "workload": name, "batch": batch, "precision": precision, "memory_format": memory_format
                    }  # fmt: skip
                    try:
                        _time_cell(write, cell, workload, device)
                    except RuntimeError as error:
                        write(**cell, reason=str(error).partition("\n")[0])


def _time_cell(write: Writer, cell: dict[str, Any], workload: Workload, device: torch.device) -> None:
    step = Step(workload, cell["batch"], cell["precision"], device, cell["memory_format"] == "channels_last")
    write(**cell, execution="eager", **timed(step, device), peak_memory_bytes=_peak(device))
    if device.type == "cuda":
        write(**cell, execution="graph", **timed(captured(step), device), peak_memory_bytes=_peak(device))
    del step
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else 0


def time_compiled(write: Writer, jobs: Sequence[tuple[str, int, str]], device: str, seconds: float) -> None:
    """Compile all jobs at the same time, one process each; then time them in turn."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, str(write.path), "--device", device, "--compiled",
                 json.dumps([*job, folder, len(jobs), seconds])],
                env=environment,
            )
            for job in jobs
        ]  # fmt: skip
        for process in processes:
            try:
                process.wait(max(1.0, seconds + 60))
            except subprocess.TimeoutExpired:
                process.kill()


def compiled_cell(write: Writer, job: Sequence[Any], device: torch.device) -> None:
    """One process of `time_compiled`: compile, wait for the others, time when it is this process's turn."""
    name, batch, precision, folder, jobs, seconds = job
    cell = {"workload": name, "batch": batch, "precision": precision, "memory_format": "contiguous"}
    ready, started = Path(folder), time.monotonic()
    try:
        workload = resolve(name, "3x224x224", 1000) if name.endswith("resnet50") else resolve(name)
        step = Step(workload, batch, precision, device)
        step.compile()
        for _ in range(2):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
    except Exception as error:  # anything that the compiler raises is a result
        write(**cell, execution="compiled", reason=f"{type(error).__name__}: {error}".partition("\n")[0])
        (ready / f"{os.getpid()}").touch()
        return
    compile_seconds = round(time.monotonic() - started, 2)
    (ready / f"{os.getpid()}").touch()
    while len(list(ready.iterdir())) < jobs and time.monotonic() < started + seconds:
        time.sleep(0.2)
    with (ready.parent / "scalewise-timing.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        more = {"compile_seconds": compile_seconds}
        write(**cell, execution="compiled", **timed(step, device), **more)
        if device.type == "cuda":
            write(**cell, execution="compiled graph", **timed(captured(step), device), **more)


def write_table(lines: Path, table: Path) -> None:
    """Write the measured cells as a CSV table, without those that failed."""
    cells = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for cell in cells:
            if "seconds" in cell:
                writer.writerow({key: _rounded(cell.get(key, "")) for key in COLUMNS})


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path, help="file of JSON lines; cells are appended")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="few small cells")
    parser.add_argument("--seconds", type=float, default=300.0, help="approximate limit")
    parser.add_argument("--table", type=Path, help="write the cells of LINES as a CSV table, and measure nothing")
    parser.add_argument("--compiled", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table:
        write_table(options.lines, options.table)
        return
    device = torch.device(options.device)
    if options.device == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream())  # the default stream cannot be captured
    about = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    write = Writer(options.lines, device=about, torch=torch.__version__)
    if options.compiled:
        compiled_cell(write, json.loads(options.compiled), device)
        return
    started = time.monotonic()
    workloads = TINY if options.tiny else WORKLOADS
    time_plain(write, workloads, device, started + 0.5 * options.seconds)
    jobs = [
        (name, batches[1], precision)
        for name, batches in workloads.items()
        for precision in PRECISIONS
        if name not in NOT_COMPILED and not (options.tiny and precision == "tf32")
    ]
    left = options.seconds - (time.monotonic() - started)
    time_compiled(write, jobs, options.device, max(left - 30.0, 20.0))


if __name__ == "__main__":
    main()
