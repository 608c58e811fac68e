"""Runs of synchronous and asynchronous training on the disk: each is written when it is over, and not done again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from scalewise.atomic import write_atomically
from scalewise.errors import RunFailed, UserError
from scalewise.experiments.curves import Point, smooth
from scalewise.results.environment import Environment, read_environments, write_environments
from scalewise.verbs.surroundings import check_same

FOLDER = "runs"
WINDOW_SAMPLES = 160


@dataclass(frozen=True)
class Ran:
    """One run: its losses over time, what it came to, and why not if it did not come through."""

    points: list[Point]
    samples_per_second: float | None = None
    staleness: float | None = None
    death_seconds: float | None = None
    """When a worker died, in a run in which one does."""
    resumed_seconds: float | None = None
    """When training went on, if the death had ended it."""
    reason: str = ""

    @property
    def smoothed(self) -> list[Point]:
        return smooth(self.points, WINDOW_SAMPLES)


_FORMAT = TypeAdapter(Ran)


class Runs:
    """Those of one folder, all made in the same surroundings: others are refused."""

    def __init__(self, out: Path, here: Environment) -> None:
        known = read_environments(out)
        for before in known.values():
            check_same(out, before, here)
        self._folder = out / FOLDER
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {self._folder}: {error.strerror}") from None
        write_environments(out, {**known, here.id: here})

    def find(self, condition: str, strategy: str, seed: int) -> Ran | None:
        path = self._path(condition, strategy, seed)
        if not path.exists():
            return None
        try:
            return _FORMAT.validate_json(path.read_bytes())
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from None
        except ValidationError:
            raise UserError(f"{path} does not hold a run; remove it, and the same command does the run again") from None

    def do(self, condition: str, strategy: str, seed: int, run: Callable[[], Ran]) -> Ran:
        """A run that did not come through is not kept: the next time it is tried again."""
        try:
            ran = run()
        except RunFailed as error:
            return Ran([], reason=f"did not come through: {error}")
        if not ran.reason:
            write_atomically(self._path(condition, strategy, seed), _FORMAT.dump_json(ran, indent=1))
        return ran

    def _path(self, condition: str, strategy: str, seed: int) -> Path:
        return self._folder / f"{condition.replace(' ', '-')}-{strategy}-seed-{seed}.json"
