"""Measure the cells of a round, one block of steps each, and save the blocks in the round's folder."""

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
from scalewise.core.errors import RunFailed, UserError
from scalewise.core.training_options import Settings
from scalewise.data.dataset import DataRequest
from scalewise.launch.placement import Placement
from scalewise.strategies.base import Strategy
from scalewise.strategies.registry import strategy_of
from scalewise.sweep.timed_cell import time_steps, timed
from scalewise.training.results import Request
from scalewise.training.session_pool import Sessions

MEASURED = "measured.jsonl"
MOST_STEPS, BLOCK_SECONDS, LONG_SECONDS = 40, 0.5, 1.0


@dataclass(frozen=True)
class Block:
    """Median step time and phases of one measured block of steps."""

    seconds: float
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Visit:
    """One block of a cell, measured on ranks that may already be running."""

    key: Key
    strategy: Strategy
    placement: Placement
    data: DataRequest
    expected_seconds: float

    @classmethod
    def of(cls, cell: Cell, machine: Machine) -> Visit:
        strategy = strategy_of(cell.strategy)
        placement = machine.placement(cell.devices, cell.link, strategy.servers)
        return cls(cell.key, strategy, placement, DataRequest(samples=machine.samples), cell.predicted)

    def block(self, sessions: Sessions) -> Block:
        request = Request(
            self.key[0], self.strategy, Settings(self.key[3], None, self._steps, execution="eager"), self.data
        )
        placement, outcomes, seconds = sessions.run(self.strategy, self.placement, time_steps, request)
        block = timed(request, placement, outcomes, seconds).block
        return Block(median(block.seconds), block.phases)

    @property
    def _steps(self) -> int:
        """Number of steps: two of warm-up and at least two that count; of long steps one each."""
        if self.expected_seconds > LONG_SECONDS:
            return 2
        return 2 + min(MOST_STEPS, max(2, int(BLOCK_SECONDS / self.expected_seconds)))

    @property
    def ranks(self) -> tuple[int, int, str]:
        """Sort key that groups cells which share a session, because only one session of slices is open at a time."""
        return self.placement.devices, self.placement.servers, getattr(self.strategy, "engine", "")


def measure(
    folder: Path, cells: Sequence[Cell], machine: Machine, sessions: Sessions, progress: Progress
) -> Iterator[Key]:
    """Measure and save the cells that the folder does not have; yield the keys of those that fail."""
    blocks = read_blocks(folder)
    visits = [Visit.of(cell, machine) for cell in cells if cell.key not in blocks]
    if machine.device_kind == "slice":
        visits.sort(key=lambda visit: visit.ranks)
    for visit in visits:
        if not progress.next_block(visit.key[0], visit.key[2]):
            return
        try:
            blocks[visit.key] = undisturbed(partial(visit.block, sessions))
        except (UserError, RunFailed) as error:
            say(f"left out: {', '.join(map(str, visit.key))}: {error}")
            yield visit.key
            continue
        save(folder, blocks)


def save(folder: Path, blocks: Mapping[Key, Block]) -> None:
    rows = ([*key, block.seconds, dict(block.phases)] for key, block in blocks.items())
    (folder / MEASURED).write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_blocks(folder: Path) -> dict[Key, Block]:
    path = folder / MEASURED
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(row[0], row[1], row[2], row[3], row[4]): Block(row[5], row[6]) for row in rows}


def measured_cells(folder: Path, cells: Sequence[Cell]) -> list[Cell]:
    """Cells with their measured seconds; cells that were not measured are left out."""
    blocks = read_blocks(folder)
    return [
        replace(cell, measured=blocks[cell.key].seconds, alone_measured=blocks[cell.alone].seconds)
        for cell in cells
        if cell.key in blocks and cell.alone in blocks
    ]
