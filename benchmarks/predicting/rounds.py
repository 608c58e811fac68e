"""Rounds: profile, predict, run, and once more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from predicting.cells import Cell, Key, predicted
from predicting.look import Look
from predicting.machine import Machine
from predicting.measured import measure
from predicting.progress import Progress
from scalewise.verbs.sessions import Sessions

Workloads = Mapping[str, Sequence[int]]
"""And their batches."""


@dataclass(frozen=True)
class Question:
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
        """What is profiled at a time: on a machine that drifts, no more than is run in the next minutes."""
        if not self.machine.drifts:
            return [self.workloads]
        return [{name: batches} for name, batches in self.workloads.items()]

    def cells(self, folder: Path, workloads: Workloads | None = None) -> list[Cell]:
        """Predicted from what is measured now, if workloads are named; else from what the folder has."""
        look = Look(self.out, folder, self.machine, quick=self.quick, only_kept=workloads is None)
        clusters = look.clusters(self.links)
        profiles = look.profiles(workloads or self.workloads)
        return list(predicted(profiles, clusters, self.workloads, self.strategies))


def run_rounds(question: Question, rounds: int, budget_seconds: float | None) -> None:
    """Until every cell has a block of each round, or the time is spent."""
    left_out: set[Key] = set()
    progress: Progress | None = None
    with Sessions() as sessions:
        for number, group in product(range(1, rounds + 1), question.groups()):
            folder = question.folder(number)
            folder.mkdir(exist_ok=True)
            cells = [cell for cell in question.cells(folder, group) if cell.key not in left_out]
            _keep(folder, cells)
            progress = progress or Progress(rounds * len(cells) * len(question.groups()), budget_seconds)
            progress.round = number
            left_out.update(measure(folder, cells, question.machine, sessions, progress))
            if progress.spent:
                return


def _keep(folder: Path, cells: Sequence[Cell]) -> None:
    """Beside those of the workloads before; what was predicted once stays."""
    path = folder / "predictions.json"
    before = json.loads(path.read_text()) if path.exists() else []
    known = {_name(cell) for cell in before}
    path.write_text(json.dumps(before + [made for made in map(asdict, cells) if _name(made) not in known], indent=1))


def _name(cell: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(cell[name] for name in ("workload", "strategy", "link", "batch", "devices"))
