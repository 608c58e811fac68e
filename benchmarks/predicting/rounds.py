"""Rounds of profiling, predicting and measuring all cells."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from predicting.cells import Cell, Key, predicted
from predicting.look import MachineFiles
from predicting.machine import Machine
from predicting.measured import measure
from predicting.progress import Progress
from scalewise.training.session_pool import Sessions

Workloads = Mapping[str, Sequence[int]]
"""Batches by workload."""


@dataclass(frozen=True)
class Experiment:
    """Cells to predict and measure, and the folder for their files."""

    out: Path
    machine: Machine
    workloads: Workloads
    links: Sequence[str]
    strategies: Sequence[str]
    quick: bool

    def folder(self, number: int) -> Path:
        return self.out / f"round-{number}"

    def folders(self) -> list[Path]:
        return sorted(self.out.glob("round-*"))

    def groups(self) -> list[Workloads]:
        """Workloads to profile at a time: on a machine whose speed drifts, only those that are measured next."""
        if not self.machine.drifts:
            return [self.workloads]
        return [{name: batches} for name, batches in self.workloads.items()]

    def cells(self, folder: Path, workloads: Workloads | None = None) -> list[Cell]:
        """Predicted cells: of `workloads`, measuring clusters and profiles that are missing; without `workloads`, from
        the files in the folder."""
        files = MachineFiles(self.out, folder, self.machine, quick=self.quick, only_saved=workloads is None)
        clusters = files.clusters(self.links)
        profiles = files.profiles(workloads or self.workloads)
        return list(predicted(profiles, clusters, self.workloads, self.strategies))


def run_rounds(experiment: Experiment, rounds: int, budget_seconds: float | None) -> None:
    """Run rounds until every cell has one block per round, or the time budget is spent."""
    left_out: set[Key] = set()
    progress: Progress | None = None
    with Sessions() as sessions:
        for number, group in product(range(1, rounds + 1), experiment.groups()):
            folder = experiment.folder(number)
            folder.mkdir(exist_ok=True)
            cells = [cell for cell in experiment.cells(folder, group) if cell.key not in left_out]
            _save(folder, cells)
            progress = progress or Progress(rounds * len(cells) * len(experiment.groups()), budget_seconds)
            progress.round = number
            left_out.update(measure(folder, cells, experiment.machine, sessions, progress))
            if progress.spent:
                return


def _save(folder: Path, cells: Sequence[Cell]) -> None:
    """Add predictions to those of other workloads. Predictions that are already saved are not replaced."""
    path = folder / "predictions.json"
    saved = json.loads(path.read_text()) if path.exists() else []
    saved_keys = {_key(cell) for cell in saved}
    new = [cell for cell in map(asdict, cells) if _key(cell) not in saved_keys]
    path.write_text(json.dumps(saved + new, indent=1))


def _key(cell: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(cell[name] for name in ("workload", "strategy", "link", "batch", "devices"))
