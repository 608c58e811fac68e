"""Cells measured in turn, a block of steps at a time, and what a folder keeps of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

from predicting.cells import ALONE, Cell, Key
from predicting.machine import FIRST_COUNT, Machine
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
WARM_UP_STEPS, FEWEST_STEPS, MOST_STEPS, BLOCK_SECONDS = 2, 2, 40, 0.5


@dataclass(frozen=True)
class Blocks:
    """The median step of every block, and the phases of the quickest."""

    seconds: tuple[float, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def middle(self) -> float:
        return median(self.seconds)

    @property
    def undisturbed(self) -> float:
        """A low quantile of the blocks: what disturbs makes them longer, never shorter."""
        return sorted(self.seconds)[(len(self.seconds) - 1) // 3]

    def __add__(self, other: Blocks) -> Blocks:
        quickest = min((self, other), key=lambda blocks: min(blocks.seconds, default=float("inf")))
        return Blocks(self.seconds + other.seconds, quickest.phases)


@dataclass(frozen=True)
class Visit:
    """One block of a cell: ranks that are running are used again."""

    key: Key
    strategy: Strategy
    placement: Placement
    data: DataRequest

    def block(self, sessions: Sessions, expected_seconds: float) -> Blocks:
        steps = WARM_UP_STEPS + min(MOST_STEPS, max(FEWEST_STEPS, int(BLOCK_SECONDS / expected_seconds)))
        request = Request(self.key[0], self.strategy, Settings(self.key[3], None, steps, execution="eager"), self.data)
        placement, outcomes, seconds = sessions.run(self.strategy, self.placement, time_steps, request)
        found = timed(request, placement, outcomes, seconds).block
        return Blocks((median(found.seconds),), found.phases)

    @property
    def ranks(self) -> tuple[int, int, str]:
        """Of slices only one session is open at a time: cells that share one follow each other."""
        return self.placement.devices, self.placement.servers, getattr(self.strategy, "engine", "")


def measure_all(out: Path, cells: Sequence[Cell], machine: Machine, rounds: int, budget_seconds: float | None) -> None:
    """Until every cell has a block of each round, or the time is spent; kept block by block."""
    known, left_out = measured_in(out), set[Key]()
    expected = {cell.key: cell.predicted for cell in cells}
    todo = [
        (number, visit)
        for number, visit in _in_turn([_visit(cell, machine) for cell in cells], machine, rounds)
        if len(known.get(visit.key, Blocks()).seconds) <= number
    ]
    progress = Progress(len(todo), rounds, budget_seconds)
    with Sessions() as sessions:
        for number, visit in todo:
            if not progress.goes_on(visit.key[2], number):
                break
            if visit.key in left_out:
                continue
            before = known.get(visit.key, Blocks())
            seconds = min(before.seconds, default=expected[visit.key])
            try:
                known[visit.key] = before + undisturbed(partial(visit.block, sessions, seconds))
            except (UserError, RunFailed) as error:
                say(f"left out: {', '.join(map(str, visit.key))}: {error}")
                left_out.add(visit.key)
                continue
            keep(out, known)
    progress.end()


def _in_turn(visits: Sequence[Visit], machine: Machine, rounds: int) -> Iterator[tuple[int, Visit]]:
    """Link by link, there and back, so that a machine that drifts does so for all."""
    for link in dict.fromkeys(visit.key[2] for visit in visits):
        chosen = [visit for visit in visits if visit.key[2] == link]
        if machine.device_kind == "slice":
            chosen.sort(key=lambda visit: visit.ranks)
        for number in range(rounds):
            for visit in chosen if number % 2 else reversed(chosen):
                yield number, visit


def _visit(cell: Cell, machine: Machine) -> Visit:
    strategy = strategy_of(cell.strategy)
    placement = machine.placement(cell.devices, cell.link, servers_of(strategy))
    return Visit(cell.key, strategy, placement, DataRequest(samples=machine.samples))


def keep(out: Path, found: Mapping[Key, Blocks]) -> None:
    """Devices come last: folders of before they were counted have none."""
    rows = ([*key[:4], of.middle, of.seconds, dict(of.phases), key[4]] for key, of in found.items())
    (out / MEASURED).write_text("".join(json.dumps(row) + "\n" for row in rows))


def measured_in(out: Path) -> dict[Key, Blocks]:
    path = out / MEASURED
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(row[0], row[1], row[2], row[3], _devices(row)): Blocks(tuple(row[5]), row[6]) for row in rows}


def _devices(row: Sequence[object]) -> int:
    if len(row) > 7:
        return int(str(row[7]))
    return 1 if row[1] == ALONE else FIRST_COUNT


def compared(out: Path, cells: Sequence[Cell], *, undisturbed: bool = False) -> list[Cell]:
    """With the median block of each, or a low quantile; cells that were not measured are left out."""
    known = measured_in(out)

    def seconds(key: Key) -> float:
        return known[key].undisturbed if undisturbed else known[key].middle

    return [
        replace(cell, measured=seconds(cell.key), alone_measured=seconds(cell.alone))
        for cell in cells
        if cell.key in known and cell.alone in known
    ]
