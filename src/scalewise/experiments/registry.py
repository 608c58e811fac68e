"""The experiments there are: what each shows, and where its code is, so that listing them loads none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from scalewise.results.experiment import ExperimentResult

Tell = Callable[[str], None]
"""Told what is being done, a line at a time."""
Run = Callable[[Path, bool, Tell], ExperimentResult]
"""(folder to write to, quick, tell)."""


@dataclass(frozen=True)
class Experiment:
    summary: str
    module: str
    """Has a function `run`."""

    def load(self) -> Run:
        return import_module(self.module).run  # type: ignore[no-any-return]


EXPERIMENTS: dict[str, Experiment] = {
    "sync-vs-async": Experiment(
        "seconds to a loss, synchronous against asynchronous: equal devices, a straggler, a death, a slow link",
        "scalewise.experiments.sync_vs_async",
    ),
}
