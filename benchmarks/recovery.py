"""`train --max-restarts` beside torchrun with `--max-restarts`: the same training, the same kill, in one run.

    python benchmarks/recovery.py
    python benchmarks/recovery.py --repeats 5 --every 50

Two CPU ranks train the same model on the same batches with DDP and save a checkpoint every EVERY steps. On torchrun's
side that is the loop of torch's tutorial on fault-tolerant training: a script that loads its snapshot when it starts.
When rank 0 has done KILL steps, rank 1 gets SIGKILL. Both sides may restart three times, and give up a peer that does
not answer after TIMEOUT seconds. Each run is also made without the kill, and the four runs alternate. Shown are the
medians of the runs that ended:

- seconds from the kill to the first step after the restart;
- steps that were computed twice;
- seconds that the whole run lost: with the kill minus without it.

On both sides rank 0 writes the time of every step to a file, from the model's forward.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import scalewise
from scalewise.data.dataset import Data
from scalewise.launch.devices import cpu_name
from scalewise.models.workload import Workload, classification_loss

WIDTH, CLASSES, BATCH, RANKS = 768, 10, 64, 2
SAMPLES = 50 * BATCH
"""An epoch has 50 steps; `train` also saves at the end of an epoch."""
LOG = "RECOVERY_BENCHMARK_LOG"
RESTARTS, TIMEOUT, LONGEST_RUN = 3, 20.0, 200.0


class Logged(nn.Module):
    """A multilayer perceptron that writes the time of every training step on rank 0."""

    def __init__(self) -> None:
        super().__init__()
        widths = [WIDTH] * 5
        hidden = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(WIDTH, CLASSES))

    def forward(self, inputs: Tensor) -> Tensor:
        is_rank_0 = dist.is_initialized() and dist.get_rank() == 0
        if self.training and torch.is_grad_enabled() and is_rank_0 and len(inputs) == BATCH // RANKS:
            with Path(os.environ[LOG]).open("a") as file:
                file.write(f"{time.monotonic()} {os.getpid()}\n")
        outputs: Tensor = self.layers(inputs)
        return outputs


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, WIDTH, generator=generator)
    return inputs, inputs[:, :CLASSES].argmax(1)


def workload() -> Workload:
    return Workload(
        name="recovery",
        model=Logged,
        data=lambda _request: Data("generated numbers", samples()),
        loss=classification_loss,
        input_shape=(WIDTH,),
        optimizer="adam",
        learning_rate=1e-4,
    )


def torchrun_side(snapshot: Path, steps: int, every: int) -> None:
    """The loop of torch's tutorial, in a process that torchrun started."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
    rank = dist.get_rank()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % os.cpu_count()]})  # type: ignore[operator]
    model = DistributedDataParallel(Logged())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    first = 0
    if snapshot.exists():
        saved = torch.load(snapshot, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    inputs, targets = samples()
    share = BATCH // RANKS
    for step in range(first, steps):
        start = step * BATCH % SAMPLES + rank * share
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[start : start + share]), targets[start : start + share]).backward()
        optimizer.step()
        if rank == 0 and (step + 1) % every == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, snapshot.with_suffix(".part"))
            snapshot.with_suffix(".part").rename(snapshot)
    dist.destroy_process_group()


@dataclass(frozen=True)
class Run:
    """One run: its seconds, and those from the kill to the next step; steps that were computed."""

    seconds: float
    steps: int
    interrupted: float = 0.0


def lines(side: str, folder: Path, steps: int, every: int) -> list[str]:
    if side == "torchrun":
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        more = ["--side", str(folder / "snapshot.pt"), "--steps", str(steps), "--every", str(every)]
        return [*start, f"--max-restarts={RESTARTS}", __file__, *more]
    line = [sys.executable, "-m", "scalewise", "train", f"{__file__}:workload", "--strategy", "mirrored"]
    line += ["--device-kind", "cpu", "--devices", str(RANKS), "--batch", str(BATCH), "--steps", str(steps)]
    line += ["--checkpoint", str(folder / "c.safetensors"), "--checkpoint-every", str(every)]
    line += ["--max-restarts", str(RESTARTS), "--timeout", str(TIMEOUT)]
    return line


def run(side: str, steps: int, every: int, kill_after: int | None) -> Run | None:
    """Return None if the run failed or did not end."""
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryFile("w+") as errors:
        log = Path(place) / "log"
        log.touch()
        started = time.monotonic()
        process = subprocess.Popen(
            lines(side, Path(place), steps, every),
            env={**os.environ, LOG: str(log), "TMPDIR": place, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        killed_at: float | None = None
        while process.poll() is None and time.monotonic() - started < LONGEST_RUN:
            if kill_after is not None and killed_at is None and len(log.read_text().splitlines()) >= kill_after:
                rank_1(side, process.pid).send_signal(signal.SIGKILL)
                killed_at = time.monotonic()
            time.sleep(0.005)
        seconds = time.monotonic() - started
        if process.poll() is None:
            end(process)
        if process.wait() != 0:
            errors.seek(0)
            print(f"{side} ended with {process.returncode}:\n{errors.read()[-1500:]}", file=sys.stderr)
            return None
        entries = [line.split() for line in log.read_text().splitlines()]
        # Rank 0 has another process after the restart.
        restarted = [float(when) for when, process_id in entries if process_id != entries[0][1]]
        return Run(seconds, len(entries), restarted[0] - killed_at if killed_at is not None else 0.0)


def end(process: subprocess.Popen[bytes]) -> None:
    for child in psutil.Process(process.pid).children(recursive=True):
        child.kill()
    process.kill()


def rank_1(side: str, launcher: int) -> psutil.Process:
    children = psutil.Process(launcher).children(recursive=True)
    if side == "torchrun":
        return next(child for child in children if child.environ().get("RANK") == "1")
    return next(child for child in children if child.name() == "sw rank 1")


def summary(calm: list[Run], killed: list[Run]) -> dict[str, float]:
    before, after = (median(run.seconds for run in runs) for runs in (calm, killed))
    return {
        "seconds": before,
        "seconds_with_kill": after,
        "seconds_lost": after - before,
        "seconds_to_next_step": median(run.interrupted for run in killed),
        "steps_repeated": median(run.steps for run in killed) - median(run.steps for run in calm),
    }


SIDES = ("scalewise", "torchrun")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--kill", type=int, default=125)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        torchrun_side(options.side, options.steps, options.every)
        return
    runs: dict[tuple[str, bool], list[Run]] = {}
    unfinished = dict.fromkeys(SIDES, 0)
    for _ in range(options.repeats):
        for side in SIDES:
            for killed in (False, True):
                result = run(side, options.steps, options.every, options.kill if killed else None)
                if result is None:
                    unfinished[side] += 1
                else:
                    runs.setdefault((side, killed), []).append(result)
                print(f"{side} {'killed' if killed else 'undisturbed'}: {result}", file=sys.stderr, flush=True)
    rows = {
        side: summary(runs[side, False], runs[side, True]) | {"unfinished": unfinished[side]}
        for side in SIDES
        if (side, False) in runs and (side, True) in runs
    }
    if options.json:
        print(json.dumps(rows))
        return
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, Scalewise {scalewise.__version__}"
    table = Table(
        "",
        "undisturbed",
        "with a kill",
        "lost",
        "kill to next step",
        "steps repeated",
        title=f"{cpu_name()}, {versions}",
    )
    for side, row in rows.items():
        cells = [
            f"{row[key]:.1f} s" for key in ("seconds", "seconds_with_kill", "seconds_lost", "seconds_to_next_step")
        ]
        table.add_row(side, *cells, f"{row['steps_repeated']:g}", f"{row['unfinished']:g}")
    Console().print(table)


if __name__ == "__main__":
    main()
