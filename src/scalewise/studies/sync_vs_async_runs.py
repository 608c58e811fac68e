"""Runs of the comparison of synchronous and asynchronous training, each saved in its own file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import TypeAdapter, ValidationError

from scalewise.core.errors import RunFailed, UserError
from scalewise.core.files import write_atomically
from scalewise.formats.store import Environment, read_environments, write_environments
from scalewise.formats.train_result import TrainResult
from scalewise.sweep.environment import check_same


@dataclass(frozen=True)
class LossPoint:
    """Training loss at one update."""

    seconds: float
    """End of the update."""
    loss: float
    """Loss of the batch before the update."""
    samples: int


def smooth(points: Sequence[LossPoint], samples: int) -> list[LossPoint]:
    """Average the loss over the last `samples` samples, so that runs with different batch sizes are comparable."""
    smoothed: list[LossPoint] = []
    first = 0
    in_window, total = 0, 0.0
    for point in points:
        in_window += point.samples
        total += point.loss * point.samples
        while in_window - points[first].samples >= samples:
            in_window -= points[first].samples
            total -= points[first].loss * points[first].samples
            first += 1
        if in_window >= samples:
            smoothed.append(LossPoint(point.seconds, total / in_window, point.samples))
    return smoothed


def seconds_to(points: Sequence[LossPoint], loss: float) -> float | None:
    """Return when the (smoothed) loss was first reached; None if it never was."""
    return next((point.seconds for point in points if point.loss <= loss), None)


def later(points: Sequence[LossPoint], seconds: float) -> list[LossPoint]:
    return [LossPoint(point.seconds + seconds, point.loss, point.samples) for point in points]


FOLDER = "runs"
WINDOW_SAMPLES = 160


@dataclass(frozen=True)
class TrainingRun:
    """One training run: losses over time and results, or the reason why it failed."""

    points: list[LossPoint]
    samples_per_second: float | None = None
    staleness: float | None = None
    death_seconds: float | None = None
    """When a worker died; None if none died."""
    resumed_seconds: float | None = None
    """When training resumed after the death; None if the death did not stop it."""
    reason: str = ""
    """Why the run failed; empty if it succeeded."""

    @property
    def smoothed(self) -> list[LossPoint]:
        return smooth(self.points, WINDOW_SAMPLES)


_FORMAT = TypeAdapter(TrainingRun)


class RunStore:
    """Saved runs in one folder; raises UserError if they were made in a different environment."""

    def __init__(self, out: Path, here: Environment) -> None:
        environments = read_environments(out)
        for before in environments.values():
            check_same(out, before, here)
        self._folder = out / FOLDER
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {self._folder}: {error.strerror}") from None
        write_environments(out, {**environments, here.id: here})

    def find(self, condition: str, strategy: str, seed: int) -> TrainingRun | None:
        path = self._path(condition, strategy, seed)
        if not path.exists():
            return None
        try:
            return _FORMAT.validate_json(path.read_bytes())
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from None
        except ValidationError:
            raise UserError(f"{path} does not contain a run; delete it to repeat the run") from None

    def do(self, condition: str, strategy: str, seed: int, run: Callable[[], TrainingRun]) -> TrainingRun:
        """Do a run and save it; a failed run is not saved, so that the next call repeats it."""
        try:
            training_run = run()
        except RunFailed as error:
            return TrainingRun([], reason=f"failed: {error}")
        if not training_run.reason:
            write_atomically(self._path(condition, strategy, seed), _FORMAT.dump_json(training_run, indent=1))
        return training_run

    def _path(self, condition: str, strategy: str, seed: int) -> Path:
        return self._folder / f"{condition.replace(' ', '-')}-{strategy}-seed-{seed}.json"


CHECKPOINT_EVERY = 10
_DYING_WORKLOAD = '''"""Workload {name} that logs every batch and kills worker 1 once, at its batch {at}."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from scalewise.models.resolve import resolve

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
        value = workload.loss(outputs, targets)
        if rank is not None:
            with HERE.with_suffix(f".{{rank}}.log").open("a") as log:
                log.write(f"{{perf_counter()}} {{float(value.detach())}} {{len(outputs)}}\\n")
        return value

    return replace(workload, loss=loss)
'''


def train_through_death(
    workload: str, at_batch: int, train: Callable[..., TrainResult], *, ends_the_run: bool
) -> TrainingRun:
    """Call `train(workload, **options)` with a workload whose worker 1 dies at the given batch.

    If the death ends the run, it is resumed from the last checkpoint with the remaining worker. The curve starts at
    the first batch and includes the interruption.
    """
    with TemporaryDirectory(prefix="scalewise-") as folder:
        file, checkpoint = Path(folder) / "dying.py", Path(folder) / "dying.safetensors"
        file.write_text(_DYING_WORKLOAD.format(at=at_batch, name=workload))
        died, dying = file.with_suffix(".died"), f"{file}:dying"
        batches_before: int | None = None
        if not ends_the_run:
            result = train(dying)
        else:
            try:
                result = train(dying, checkpoint=checkpoint, checkpoint_every=CHECKPOINT_EVERY)
            except RunFailed:
                if not died.exists():
                    raise
                batches_before = len(_logged_batches(file))
                result = train(dying, devices=1, checkpoint=checkpoint, resume=True)
        if not died.exists() or (ends_the_run and batches_before is None):
            raise RunFailed("the worker did not die")
        logged = _logged_batches(file)
        begin = logged[0].seconds
        points = later(logged, -begin)
        return TrainingRun(
            points,
            _samples_per_second(
                points, batches_before, (at_batch - 1) // CHECKPOINT_EVERY * CHECKPOINT_EVERY * result.batch
            ),
            result.staleness.mean if result.staleness else None,
            float(died.read_text()) - begin,
            None if batches_before is None else points[batches_before].seconds,
        )


def _samples_per_second(points: list[LossPoint], batches_before: int | None, checkpoint_samples: int) -> float:
    """Return samples per second over all batches and the interruption; samples repeated after a checkpoint count once.

    `checkpoint_samples` are the samples trained before the checkpoint.
    """
    first = 0 if batches_before is None else checkpoint_samples
    samples = first + sum(point.samples for point in points[batches_before or 0 :])
    return samples / points[-1].seconds


def _logged_batches(file: Path) -> list[LossPoint]:
    """Read the batches of all workers, ordered by the time at which each loss was known, just before backward."""
    lines = [line.split() for log in file.parent.glob("*.log") for line in log.read_text().splitlines()]
    points = [LossPoint(float(seconds), float(loss), int(samples)) for seconds, loss, samples in lines]
    return sorted(points, key=lambda point: point.seconds)
