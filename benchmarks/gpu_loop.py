"""Scalewise's loop on one GPU beside the study's loop, plain eager, hand-written loops, Accelerate and Lightning.

    python benchmarks/gpu_loop.py --json gpu_loop.jsonl            # all rows; 5 minutes on an H200
    python benchmarks/gpu_loop.py --rows linear-10,conv-100        # some of them
    python benchmarks/gpu_loop.py --tiny --rounds 2                # small models, to test the script on a CPU

Model, data, precision and optimizer (Adam, fused except in the study's loop) are the same for all loops of a row. Every
row has a process of its own, which builds and warms up its loops; all rows do so at the same time, because
compilation takes most of it. Afterwards one loop runs at a time: in each round, every loop of every row runs a block of
steps, so that drift of the machine affects all of them. Figures are medians over the rounds, in seconds per step.

ours            Scalewise's engine with the options of the row, as `train` runs it, including its clock and losses
study           the loop of the 2020 study: samples one by one through a DataLoader, plain Adam
eager           data on the device, one gather per batch, fused Adam, no synchronisation
hand ...        the same with a hand-captured CUDA graph, torch.compile or Fourier convolutions in plain PyTorch
accelerate      Accelerate's prepare and backward, with a DataLoader that collates samples
lightning       Trainer.fit, with the same DataLoader
... batched     the same with a dataset that returns whole batches, which costs the host much less
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import logging
import multiprocessing
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, TextIO

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from scalewise.core.statistics import interval_of
from scalewise.core.training_options import MOST_PENDING_STEPS, ExecutionOptions, Settings, steps_per_epoch
from scalewise.data.dataset import DataRequest
from scalewise.engines.base import Engine, Job, Place
from scalewise.engines.single import build
from scalewise.launch.devices import device_name
from scalewise.models.resolve import resolve
from scalewise.models.workload import Workload
from scalewise.runtime.clock import Times, make_clock
from scalewise.runtime.feed import epoch_order
from scalewise.runtime.fourier_convolution import fast_size
from scalewise.runtime.optimizers import autocast, set_precision
from scalewise.strategies.single import Single

Block = Callable[[int], float]
"""Runs a number of steps and returns the seconds that they took."""
LEARNING_RATE = 5e-4
LIGHTNING_WARM_UP = 2


@dataclass(frozen=True)
class Row:
    """Workload, batch and precision, Scalewise's options, and the hand-written loops that it is compared with."""

    workload: str
    batch: int
    precision: str
    ours: ExecutionOptions
    hand: tuple[str, ...]
    also_ours: dict[str, ExecutionOptions] = field(default_factory=dict)
    """Other options of Scalewise that are measured too, by name."""
    samples: int | None = None
    """Number of samples; None for all of the workload."""
    tiny: str = ""
    """Workload with which --tiny replaces this one."""


GRAPH = ExecutionOptions(execution="graph")
FFT = ExecutionOptions(execution="graph", convolutions="fft")
IMAGES = ExecutionOptions("compile", "reduce-overhead", "channels_last", precision="bf16")
TEXT = ExecutionOptions("compile", "reduce-overhead", precision="bf16")
ROWS = {
    **{f"linear-{batch}": Row("linear", batch, "fp32", GRAPH, ("hand graph",)) for batch in (10, 100, 600)},
    **{
        f"conv-{batch}": Row("conv", batch, "fp32", FFT, ("hand fft graph", "hand graph"), {"ours direct": GRAPH})
        for batch in (100, 600)
    },
    "unet-8": Row(
        "unet:full", 8, "bf16", IMAGES, ("hand compile channels_last",), samples=64, tiny="unet:width=2,depth=2"
    ),
    **{
        f"resnet50-{batch}": Row(
            "resnet50", batch, "bf16", IMAGES, ("hand compile channels_last",), samples=4 * batch, tiny="resnet18"
        )
        for batch in (32, 128)
    },
    "transformer-16": Row(
        "transformer:layers=12,width=768,heads=12,context=512", 16, "bf16", TEXT, ("hand compile",), samples=128,
        tiny="transformer:layers=1,width=16,heads=2,context=16",
    ),
    "hf-gpt2-8": Row("hf:gpt2,context=512", 8, "bf16", TEXT, ("hand compile",), samples=128, tiny="hf:gpt2,context=8"),
}  # fmt: skip


class Timed:
    """Runs blocks of a step function, and waits for the device at both ends."""

    def __init__(self, step: Callable[[], None], device: torch.device, engine: Engine | None = None) -> None:
        self.step, self.device, self.engine = step, device, engine
        self.stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def __call__(self, steps: int) -> float:
        with torch.cuda.stream(self.stream):  # Scalewise's engine has a stream of its own
            wait_for(self.device)
            started = perf_counter()
            for _ in range(steps):
                self.step()
            wait_for(self.device)
            return perf_counter() - started


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass
class Setting:
    """What all loops of a row share."""

    row: Row
    workload: Workload
    tensors: tuple[Tensor, Tensor]
    device: torch.device

    @property
    def precision(self) -> Any:
        return self.row.precision

    def loss_of(self, model: Callable[..., Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        with autocast(self.precision, self.device):
            return self.workload.loss(model(inputs), targets)

    def adam(self, model: nn.Module, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True, **options)

    def resident(self) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets and shuffled row numbers on the device."""
        inputs, targets = (tensor.to(self.device) for tensor in self.tensors)
        return inputs, targets, epoch_order(0, 0, len(inputs)).to(self.device)

    def loader(self, *, batched: bool) -> DataLoader[Any]:
        samples: Dataset[Any] = Batches(*self.tensors) if batched else TensorDataset(*self.tensors)
        return DataLoader(
            samples,
            batch_size=self.row.batch,
            shuffle=True,
            drop_last=True,
            pin_memory=self.device.type == "cuda",
            collate_fn=as_it_is if batched else None,
        )


class Batches(Dataset[Any]):
    """Dataset from which a DataLoader fetches a whole batch with one gather."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        numbers = torch.tensor(rows)
        return self.inputs.index_select(0, numbers), self.targets.index_select(0, numbers)


def as_it_is(batch: Any) -> Any:
    return batch


def ours(options: ExecutionOptions, setting: Setting) -> Block:
    """Scalewise's engine of one device."""
    device, batch = setting.device, setting.row.batch
    data = setting.workload.data(DataRequest(samples=setting.row.samples))
    clock = make_clock(device, Times())
    settings = Settings(batch, None, 1, optimizer="adam", learning_rate=LEARNING_RATE).with_execution(options)
    before = torch.cuda.current_stream(device) if device.type == "cuda" else None
    engine = build(Single(), Job.of(setting.workload, data, settings, Place(0, 1, device), clock))
    remaining = epoch = pending = 0

    def step() -> None:
        nonlocal remaining, epoch, pending
        if remaining == 0:
            if pending > MOST_PENDING_STEPS - steps_per_epoch(len(data), batch):
                clock.close()
                engine.losses()
                clock.collect()
                pending = 0
            whole = [rows for rows in epoch_order(0, epoch, len(data)).split(batch) if len(rows) == batch]
            engine.start_epoch(whole)
            remaining, epoch = len(whole), epoch + 1
        engine.step()
        remaining -= 1
        pending += 1

    block = Timed(step, device, engine)
    if before is not None:
        torch.cuda.set_stream(before)
    return block


def study(setting: Setting) -> Block:
    """The study's loop; the samples are decoded in advance, which favours it."""
    device = setting.device
    loader = DataLoader(TensorDataset(*setting.tensors), batch_size=setting.row.batch, shuffle=True, drop_last=True)
    model = setting.workload.model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    batches = forever(loader)

    def step() -> None:
        inputs, targets = (tensor.to(device) for tensor in next(batches))
        optimizer.zero_grad()
        setting.loss_of(model, inputs, targets).backward()
        optimizer.step()

    return Timed(step, device)


def forever(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def eager(setting: Setting, *, compiled: bool = False, channels_last: bool = False) -> Block:
    """Data on the device, one gather per batch, fused Adam, optionally torch.compile and channels_last."""
    batch = setting.row.batch
    inputs, targets, rows = setting.resident()
    model = setting.workload.model().to(setting.device)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    optimizer = setting.adam(model)
    network = torch.compile(model, mode="reduce-overhead", dynamic=False) if compiled else model
    position = 0

    def step() -> None:
        nonlocal position
        chosen = rows[position : position + batch]
        position = 0 if position + 2 * batch > len(rows) else position + batch
        setting.loss_of(network, inputs.index_select(0, chosen), targets.index_select(0, chosen)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Timed(step, setting.device)


def hand_graph(setting: Setting, *, fourier: bool = False) -> Block:
    """Hand-captured CUDA graph of a whole step: one copy of row numbers and one replay per step."""
    device, batch = setting.device, setting.row.batch
    inputs, targets, rows = setting.resident()
    model = setting.workload.model().to(device)
    if fourier:
        for layer in list(model.modules()):
            if type(layer) is nn.Conv1d:
                layer.__class__ = PlainFourierConv1d
    on_gpu = device.type == "cuda"
    optimizer = setting.adam(model, capturable=on_gpu)
    chosen = rows[:batch].clone()

    def work() -> None:
        optimizer.zero_grad(set_to_none=True)
        setting.loss_of(model, inputs.index_select(0, chosen), targets.index_select(0, chosen)).backward()
        optimizer.step()

    replay = captured(work) if on_gpu else work
    position = 0

    def step() -> None:
        nonlocal position
        chosen.copy_(rows[position : position + batch])
        position = 0 if position + 2 * batch > len(rows) else position + batch
        replay()

    return Timed(step, device)


def captured(work: Callable[[], None]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


class PlainFourierConv1d(nn.Conv1d):
    """Conv1d in a few lines of plain PyTorch: one transform of the whole signal."""

    def forward(self, inputs: Tensor) -> Tensor:
        padding, taps = int(self.padding[0]), self.kernel_size[0]
        length = inputs.shape[-1] + 2 * padding
        size = fast_size(length)
        signal = torch.fft.rfft(functional.pad(inputs, (padding, padding)), size)
        kernel = torch.fft.rfft(self.weight, size).conj()
        product = torch.einsum("bcf,ocf->bof", signal, kernel)
        outputs: Tensor = torch.fft.irfft(product, size)[..., : length - taps + 1]
        return outputs + self.bias.view(-1, 1) if self.bias is not None else outputs


def accelerate(setting: Setting, *, batched: bool = False) -> Block:
    from accelerate import Accelerator

    mixed = "bf16" if setting.row.precision == "bf16" else "no"
    accelerator = Accelerator(mixed_precision=mixed, cpu=setting.device.type == "cpu")
    model = setting.workload.model()
    model, optimizer, loader = accelerator.prepare(model, setting.adam(model), setting.loader(batched=batched))
    batches = forever(loader)

    def step() -> None:
        inputs, targets = next(batches)
        optimizer.zero_grad()
        accelerator.backward(setting.workload.loss(model(inputs), targets))
        optimizer.step()

    return Timed(step, setting.device)


def lightning(setting: Setting, *, batched: bool = False) -> Block:
    """Trainer.fit, timed from the start of its third step to the end of its last."""
    import lightning as library

    workload, device = setting.workload, setting.device

    class Module(library.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = workload.model()

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            return workload.loss(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return setting.adam(self.model)

    class Stopwatch(library.Callback):  # type: ignore[misc]
        started: ClassVar[float] = 0.0

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == LIGHTNING_WARM_UP:
                wait_for(device)
                Stopwatch.started = perf_counter()

    module, loader = Module(), setting.loader(batched=batched)
    precision = "bf16-mixed" if setting.row.precision == "bf16" else "32-true"

    def block(steps: int) -> float:
        trainer = library.Trainer(
            max_steps=steps + LIGHTNING_WARM_UP,
            max_epochs=-1,
            accelerator="gpu" if device.type == "cuda" else "cpu",
            devices=1,
            precision=precision,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[Stopwatch(), StopAt()],
        )
        trainer.fit(module, loader)
        return StopAt.ended - Stopwatch.started

    class StopAt(library.Callback):  # type: ignore[misc]
        ended: ClassVar[float] = 0.0

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == trainer.max_steps:
                wait_for(device)
                StopAt.ended = perf_counter()

    return block


def loops(row: Row) -> dict[str, Callable[[Setting], Block]]:
    """Loops of a row by name; those that take longest to build come last."""
    hand: dict[str, Callable[[Setting], Block]] = {
        "hand graph": hand_graph,
        "hand fft graph": partial(hand_graph, fourier=True),
        "hand compile": partial(eager, compiled=True),
        "hand compile channels_last": partial(eager, compiled=True, channels_last=True),
    }
    chosen: dict[str, Callable[[Setting], Block]] = {"study": study, "eager": eager}
    for name, library in (("accelerate", accelerate), ("lightning", lightning)):
        if importlib.util.find_spec(name):
            if row.workload == "linear":
                chosen[name] = library
            chosen[f"{name} batched"] = partial(library, batched=True)
    for name, options in row.also_ours.items():
        chosen[name] = partial(ours, options)
    chosen["ours"] = partial(ours, row.ours)
    return chosen | {name: hand[name] for name in row.hand}


def serve(pipe: Connection, row: Row, device: torch.device) -> None:
    """Process of a row: build its loops, then run blocks (name, steps) and send back their seconds, until None."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(4)
    set_precision(row.precision, device)  # type: ignore[arg-type]
    workload = resolve(row.workload)
    data = workload.data(DataRequest(samples=row.samples))
    assert data.tensors is not None
    setting = Setting(row, workload, data.tensors, device)
    blocks: dict[str, Block] = {}
    for name, make in loops(row).items():
        torch.manual_seed(0)
        started = perf_counter()
        try:
            block = make(setting)
            block(6)
        except Exception as error:
            traceback.print_exc()
            pipe.send((name, None, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", ""))
        else:
            blocks[name] = block
            execution = block.engine.execution if isinstance(block, Timed) and block.engine else ""
            pipe.send((name, perf_counter() - started, "", execution))
    gc.collect()
    gc.freeze()
    pipe.send(None)
    while task := pipe.recv():
        name, steps = task
        pipe.send(blocks[name](steps))
    os._exit(0)  # libraries may wait for threads of their own


class Rows:
    """Processes of the rows: started together, asked one at a time."""

    def __init__(self, rows: dict[str, Row], device: torch.device, write: Callable[[dict[str, Any]], None]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.rows, self.write = rows, write
        self.pipes: dict[str, Connection] = {}
        self.processes: dict[str, Any] = {}
        self.steps: dict[tuple[str, str], int] = {}
        for name, row in rows.items():
            self.pipes[name], far_end = spawn.Pipe()
            # Not a daemon: compilation starts processes.
            self.processes[name] = spawn.Process(target=serve, args=(far_end, row, device))
            self.processes[name].start()
            far_end.close()

    def wait_until_ready(self, deadline: float) -> None:
        """Receive the loops that were built; end rows that are not ready at the deadline."""
        for name in list(self.rows):
            while True:
                try:
                    if not self.pipes[name].poll(max(0.0, deadline - perf_counter())):
                        raise EOFError("not ready in time")
                    message = self.pipes[name].recv()
                except EOFError as error:
                    self.end(name, str(error) or "the process ended")
                    break
                if message is None:
                    break
                loop, seconds, failure, execution = message
                self.write(
                    {
                        "kind": "built",
                        "row": name,
                        "loop": loop,
                        "seconds": seconds,
                        "failure": failure,
                        "execution": execution,
                    }
                )
                if not failure:
                    self.steps[name, loop] = 4

    def calibrate(self, block_seconds: float) -> None:
        """Choose the steps of a block of every loop."""
        for (name, loop), steps in list(self.steps.items()):
            seconds = self.seconds_of(name, loop)
            if seconds is not None:
                self.steps[name, loop] = max(4, round(block_seconds / seconds))
                self.write({"kind": "calibrated", "row": name, "loop": loop, "seconds": seconds, "steps": steps})

    def seconds_of(self, name: str, loop: str) -> float | None:
        """Seconds per step of one block, or None if the row has ended."""
        if name not in self.pipes:
            return None
        steps = self.steps[name, loop]
        try:
            self.pipes[name].send((loop, steps))
            if not self.pipes[name].poll(60):
                raise EOFError("no answer within a minute")
            return float(self.pipes[name].recv()) / steps
        except (EOFError, OSError) as error:
            self.end(name, f"{loop}: {error}")
            return None

    def end(self, name: str, reason: str) -> None:
        self.write({"kind": "ended", "row": name, "reason": reason})
        self.processes[name].terminate()
        self.pipes.pop(name).close()

    def close(self) -> None:
        for pipe in self.pipes.values():
            pipe.send(None)
        for process in self.processes.values():
            process.join(5)
            if process.is_alive():
                process.kill()


def summary(rows: dict[str, Row], times: dict[tuple[str, str], list[float]]) -> list[dict[str, Any]]:
    """One document per loop: median, interval, and the speed of ours relative to it."""
    documents = []
    for name, row in rows.items():
        ours_median = interval_of(times.get((name, "ours"), [])).median
        for loop in loops(row):
            if values := times.get((name, loop)):
                interval = interval_of(values)
                documents.append(
                    {
                        "kind": "summary", "row": name, "loop": loop, "workload": row.workload, "batch": row.batch,
                        "precision": row.precision, "options": str(row.ours) if loop == "ours" else "",
                        "seconds": interval.median, "low": interval.low, "high": interval.high, "rounds": interval.n,
                        "ours_is_faster_by": interval.median / ours_median,
                    }
                )  # fmt: skip
    return documents


def table_of(documents: list[dict[str, Any]]) -> Table:
    table = Table(box=None, header_style="dim")
    for title in ("row", "loop", "step", "95% interval", "ours faster by"):
        table.add_column(title, justify="left" if title in ("row", "loop") else "right")
    for document in documents:
        low, high = document["low"] * 1e3, document["high"] * 1e3
        table.add_row(
            document["row"],
            document["loop"],
            f"{document['seconds'] * 1e3:.3f} ms",
            f"{low:.3f} to {high:.3f}",
            f"{document['ours_is_faster_by']:.2f}x",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.15, help="length of a block of steps")
    parser.add_argument("--ready-within", type=float, default=240.0, help="seconds for building and compiling")
    parser.add_argument("--end-after", type=float, default=320.0, help="seconds after which no further round starts")
    parser.add_argument("--tiny", action="store_true", help="small models and batches, to test the script")
    parser.add_argument("--json", type=Path, help="write results to this file, a line as soon as each is known")
    options = parser.parse_args()
    started = perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = {name: ROWS[name] for name in options.rows.split(",")}
    if options.tiny:
        rows = {name: tiny(row) for name, row in rows.items()}
    file: TextIO | None = options.json.open("w") if options.json else None

    def write(document: dict[str, Any]) -> None:
        text = json.dumps(document | {"after_seconds": round(perf_counter() - started, 1)})
        print(text, file=file or sys.stderr, flush=True)

    write(
        {
            "kind": "run", "command": " ".join(sys.argv), "device": device_name(device), "torch": torch.__version__,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "load": os.getloadavg()[0],
        }
    )  # fmt: skip
    processes = Rows(rows, device, write)
    processes.wait_until_ready(started + options.ready_within)
    processes.calibrate(options.seconds)
    times: dict[tuple[str, str], list[float]] = {}
    for number in range(options.rounds):
        if perf_counter() - started > options.end_after:
            break
        for name, loop in list(processes.steps) if number % 2 else reversed(list(processes.steps)):
            if loop.startswith("lightning") and number % 2:
                continue  # starting Trainer.fit takes longer than its steps
            if (seconds := processes.seconds_of(name, loop)) is not None:
                times.setdefault((name, loop), []).append(seconds)
                write({"kind": "round", "row": name, "loop": loop, "round": number, "seconds": seconds})
    documents = summary(rows, times)
    for document in documents:
        write(document)
    processes.close()
    Console(width=120).print(table_of(documents))


def tiny(row: Row) -> Row:
    """Return the row with a small model and batch 4."""
    workload = row.tiny or row.workload
    options = ExecutionOptions("eager", convolutions=row.ours.convolutions, precision=row.ours.precision)
    also = dict.fromkeys(row.also_ours, ExecutionOptions("eager"))
    return Row(workload, 4, row.precision, options, row.hand, also, samples=16)


if __name__ == "__main__":
    main()
