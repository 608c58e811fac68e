"""A run on whose way worker 1 is killed: noted batch by batch, on one clock through the death and what follows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from scalewise.errors import RunFailed
from scalewise.experiments.curves import Point, later
from scalewise.experiments.sync_vs_async_runs import Ran
from scalewise.results.train import TrainResult

CHECKPOINT_EVERY = 10
_DYING = '''"""The workload {name}: every batch is noted, and worker 1 is killed at its batch {at}, once."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from scalewise.workloads.resolve import resolve

HERE = Path(__file__)
DIED = HERE.with_suffix(".died")


def dying():
    workload = resolve("{name}")
    batches = 0

    def loss(outputs, targets):
        nonlocal batches
        batches += 1
        rank = os.environ.get("SCALEWISE_RANK")
        if batches == {at} and rank == "1" and not DIED.exists():
            DIED.write_text(str(perf_counter()))
            os.kill(os.getpid(), signal.SIGKILL)
        found = workload.loss(outputs, targets)
        if rank is not None:
            with HERE.with_suffix(f".{{rank}}.log").open("a") as log:
                log.write(f"{{perf_counter()}} {{float(found.detach())}} {{len(outputs)}}\\n")
        return found

    return replace(workload, loss=loss)
'''


def train_through_death(workload: str, at_batch: int, train: Callable[..., TrainResult], *, ends_the_run: bool) -> Ran:
    """`train(workload, **options)`. A run that the death ends goes on from its last checkpoint with the worker that is
    left; the time until then is part of the curve, which begins with the first batch."""
    with TemporaryDirectory(prefix="scalewise-") as folder:
        file, checkpoint = Path(folder) / "dying.py", Path(folder) / "dying.safetensors"
        file.write_text(_DYING.format(at=at_batch, name=workload))
        died, dying = file.with_suffix(".died"), f"{file}:dying"
        noted_before: int | None = None
        if not ends_the_run:
            result = train(dying)
        else:
            try:
                result = train(dying, checkpoint=checkpoint, checkpoint_every=CHECKPOINT_EVERY)
            except RunFailed:
                if not died.exists():
                    raise
                noted_before = len(_noted(file))
                result = train(dying, devices=1, checkpoint=checkpoint, resume=True)
        if not died.exists() or (ends_the_run and noted_before is None):
            raise RunFailed("the worker did not die")
        noted = _noted(file)
        begin = noted[0].seconds
        points = later(noted, -begin)
        return Ran(
            points,
            _rate(points, noted_before, (at_batch - 1) // CHECKPOINT_EVERY * CHECKPOINT_EVERY * result.batch),
            result.staleness.mean if result.staleness else None,
            float(died.read_text()) - begin,
            None if noted_before is None else points[noted_before].seconds,
        )


def _rate(points: list[Point], noted_before: int | None, kept_samples: int) -> float:
    """Samples over the wall time of all batches, the death's included; what is done again from the checkpoint counts
    once."""
    first = 0 if noted_before is None else kept_samples
    samples = first + sum(point.samples for point in points[noted_before or 0 :])
    return samples / points[-1].seconds


def _noted(file: Path) -> list[Point]:
    """All workers' batches by the machine's clock: when each loss was known, just before backward."""
    lines = [line.split() for log in file.parent.glob("*.log") for line in log.read_text().splitlines()]
    points = [Point(float(seconds), float(loss), int(samples)) for seconds, loss, samples in lines]
    return sorted(points, key=lambda point: point.seconds)
