"""Cells of a round, measured one after the other, a block of steps each, and what the round's folder keeps of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

from predicting.cells import Cell, Key
from predicting.machine import Machine
from predicting.progress import Progress
from predicting.quiet import say, undisturbed
from scalewise.data.data import DataRequest
from scalewise.errors import RunFailed, UserError
from scalewise.session.placement import Placement
from scalewise.step.settings import Settings
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.strategy import Strategy, servers_of
from scalewise.training.request import Request
from scalewise.verbs.sessions import Sessions
from scalewise.verbs.timing import time_steps, timed

MEASURED = "measured.jsonl"
MOST_STEPS, BLOCK_SECONDS, LONG_SECONDS = 40, 0.5, 1.0


@dataclass(frozen=True)
class Block:
    """Its median step, and the phases."""

    seconds: float
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Visit:
    """One block of a cell: ranks that are running are used again."""

    key: Key
    strategy: Strategy
    placement: Placement
    data: DataRequest
    expected_seconds: float

    @classmethod
    def of(cls, cell: Cell, machine: Machine) -> Visit:
        strategy = strategy_of(cell.strategy)
        placement = machine.placement(cell.devices, cell.link, servers_of(strategy))
        return cls(cell.key, strategy, placement, DataRequest(samples=machine.samples), cell.predicted)

    def block(self, sessions: Sessions) -> Block:
        request = Request(
            self.key[0], self.strategy, Settings(self.key[3], None, self._steps, execution="eager"), self.data
        )
        placement, outcomes, seconds = sessions.run(self.strategy, self.placement, time_steps, request)
        found = timed(request, placement, outcomes, seconds).block
        return Block(median(found.seconds), found.phases)

    @property
    def _steps(self) -> int:
        """Two that warm up and two that count, or more; of long ones one each."""
        if self.expected_seconds > LONG_SECONDS:
            return 2
        return 2 + min(MOST_STEPS, max(2, int(BLOCK_SECONDS / self.expected_seconds)))

    @property
    def ranks(self) -> tuple[int, int, str]:
        """Of slices only one session is open at a time: cells that share one follow each other."""
        return self.placement.devices, self.placement.servers, getattr(self.strategy, "engine", "")


def measure(
    folder: Path, cells: Sequence[Cell], machine: Machine, sessions: Sessions, progress: Progress
) -> Iterator[Key]:
    """Those that the folder does not have, kept one by one; the keys of those that could not be measured."""
    known = measured_in(folder)
    visits = [Visit.of(cell, machine) for cell in cells if cell.key not in known]
    if machine.device_kind == "slice":
        visits.sort(key=lambda visit: visit.ranks)
    for visit in visits:
        if not progress.goes_on(visit.key[0], visit.key[2]):
            return
        try:
            known[visit.key] = undisturbed(partial(visit.block, sessions))
        except (UserError, RunFailed) as error:
            say(f"left out: {', '.join(map(str, visit.key))}: {error}")
            yield visit.key
            continue
        keep(folder, known)


def keep(folder: Path, found: Mapping[Key, Block]) -> None:
    rows = ([*key, of.seconds, dict(of.phases)] for key, of in found.items())
    (folder / MEASURED).write_text("".join(json.dumps(row) + "\n" for row in rows))


def measured_in(folder: Path) -> dict[Key, Block]:
    path = folder / MEASURED
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(row[0], row[1], row[2], row[3], row[4]): Block(row[5], row[6]) for row in rows}


def compared(folder: Path, cells: Sequence[Cell]) -> list[Cell]:
    """With what was measured; cells that were not are left out."""
    known = measured_in(folder)
    return [
        replace(cell, measured=known[cell.key].seconds, alone_measured=known[cell.alone].seconds)
        for cell in cells
        if cell.key in known and cell.alone in known
    ]
