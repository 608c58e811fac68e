"""The cells of a sweep, visited in rounds: a block of steps each, until each has been timed enough.

    window    | a  b  c  d | ref | a  b  c  d | ref | a  c  d  e | ref ...      (b is through, e takes its place)

A reference cell is timed between rounds. Where it moved, what was timed since it last stood still is timed again, and
what is timed until it does.
How far visits to a cell lie from each other is learnt from all cells together.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from scalewise.errors import RunFailed, UserError, UsersCodeFailed
from scalewise.measuring.cell import Cell
from scalewise.measuring.reference import Reference
from scalewise.measuring.spread import Spread, usual_spreads
from scalewise.measuring.stopping import Goal
from scalewise.results.measurement import Measurement
from scalewise.results.statistics import Interval
from scalewise.results.store import Store
from scalewise.results.units import seconds_text
from scalewise.session.failure import RankFailed, smaller_batch
from scalewise.training.outcome import Report
from scalewise.verbs.sessions import Sessions
from scalewise.verbs.timing import Timed, time_steps, timed, timed_epochs
from scalewise.verbs.trial import Task, Trial

WINDOW = 6
"""Cells under way at a time: their repeats lie apart, and a kill loses no more than these."""
MOST_RETIMED = 2
FEWEST_CELLS = 3
"""With fewer, blocks of the same cell lie close enough to watch each other."""
REFERENCE_STEPS, REFERENCE_SECONDS = 6, 0.2
FIRST_GUESS = Spread(0.08, 30)
"""Of visits, until cells have been visited often enough to say: on two cores they differ by 2 to 12 %."""


@dataclass(frozen=True)
class Progress:
    """Where a sweep stands, and the cell under way."""

    done: int
    total: int
    fraction: float
    """Of the whole sweep, cells under way included."""
    cell: Cell
    interval: Interval
    blocks: int

    @property
    def text(self) -> str:
        """'linear, mirrored on 2 cpu devices, batch 20: 4.2 ms, 95 % interval 12.0% wide'."""
        step = self.interval
        return f"{self.cell.text}: " + (f"{seconds_text(step.median)}, {step.width_text}" if step.n else "")


class Sweep:
    """`go` records every cell it gets to the end of; `not_begun` is what the total budget left no time for."""

    def __init__(
        self,
        tasks: Sequence[Task],
        store: Store,
        sessions: Sessions,
        goal: Goal,
        budget_seconds: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        on_cell: Callable[[Measurement], None] | None = None,
    ) -> None:
        self.waiting = deque(task for task in tasks if task.obstacle is None)
        self.impossible = [task for task in tasks if task.obstacle is not None]
        self.total = len(tasks)
        self.store, self.sessions, self.goal = store, sessions, goal
        self.deadline = perf_counter() + (math.inf if budget_seconds is None else budget_seconds)
        self.on_progress, self.on_cell = on_progress, on_cell
        self.window: list[Trial] = []
        self.pending: list[Trial] = []
        """Timed enough, but not yet known to have been timed on a steady machine."""
        self.step_seconds: dict[Cell, float] = {}
        self.standard: Trial | None = None
        self.reference = Reference()
        self.adrift = False
        """Whether the machine had not come to rest yet when the cells under way were last begun."""
        self.learnt: dict[int, list[list[float]]] = defaultdict(list)
        """The visits' levels of cells that are through, by device count: one device waits for no other."""
        self.done = 0
        self.told = 0.0
        """The largest fraction that was told: a cell that is timed again does not take the bar back."""

    @property
    def not_begun(self) -> int:
        return len(self.waiting)

    def go(self) -> None:
        for task in self.impossible:
            trial = Trial(task)
            self._record(trial, trial.without(task.without_a_run, task.obstacle or ""))
        while (self.waiting or self.window or self.pending) and perf_counter() < self.deadline:
            while self.waiting and len(self.window) < self._room():
                self.window.append(Trial(self.waiting.popleft()))
            for trial in self._in_turn():
                if perf_counter() < self.deadline:
                    self._visit(trial)
            self._settle()
        for trial in [*self.pending, *self.window]:
            trial.remember_forgotten()
            if trial.interval.n:
                self._record(trial, trial.measurement(self.goal))
        self.waiting.extendleft(trial.task for trial in reversed(self.window))

    def _room(self) -> int:
        """Epochs of the paper's protocol are one long visit each: nothing to interleave."""
        task = self.waiting[0]
        return 1 if task.cell.protocol == "paper" else WINDOW

    def _in_turn(self) -> list[Trial]:
        """Slices have one session at a time: cells that share it follow each other."""
        if any(trial.cell.device_kind == "slice" for trial in self.window):
            return sorted(self.window, key=lambda trial: trial.cell.devices)
        return list(self.window)

    def _visit(self, trial: Trial) -> None:
        try:
            trial.seen += self._time(trial, self._steps(trial))
        except UsersCodeFailed as error:
            self._record(trial, trial.without("failed", str(error)))
        except UserError as error:
            self._record(trial, trial.without("skipped", str(error)))
        except RankFailed as error:
            self._record(trial, trial.without("oom" if error.kind == "oom" else "failed", for_a_sweep(str(error))))
        except RunFailed as error:
            self._record(trial, trial.without("failed", for_a_sweep(str(error))))
        else:
            self._learn()
            self.step_seconds[trial.cell] = trial.interval.median
            self._tell(trial)

    def _steps(self, trial: Trial) -> int | None:
        return None if trial.cell.protocol == "paper" else trial.steps(self.goal, self._expected(trial.cell))

    def _expected(self, cell: Cell) -> float | None:
        """The longest that cells of the same workload make likely: a step takes no longer than its batch grows."""
        known = [
            seconds * max(1.0, cell.batch / other.batch)
            for other, seconds in self.step_seconds.items()
            if other.workload == cell.workload
        ]
        return max(known, default=None)

    def _time(self, trial: Trial, steps: int | None) -> list[Timed]:
        task, cell = trial.task, trial.cell
        request = task.request(steps)

        def told(_: int, report: Report) -> None:
            if steps is None:
                self._tell(trial, report.steps_done / report.steps)

        placement, outcomes, seconds = self.sessions.run(
            cell.strategy, task.placement, time_steps, request, on_report=told
        )
        self.reference.since_seconds += seconds
        combine = timed_epochs if steps is None else lambda *found: [timed(*found)]
        return combine(request, placement, outcomes, seconds)

    def _settle(self) -> None:
        """Look whether the machine moved while the latest blocks were timed; then record what is through."""
        for trial in [trial for trial in self.window if trial.through(self.goal)]:
            self.window.remove(trial)
            self.pending.append(trial)
        in_time = perf_counter() < self.deadline
        at_the_end = not in_time or not (self.waiting or self.window)
        if self.standard and not self.reference.due() and not self.adrift and not at_the_end:
            return
        now = self._moved()
        moved, self.adrift = now or self.adrift, now and in_time and self._read_reference(again=True)
        in_time = perf_counter() < self.deadline
        for trial in self.pending + self.window:
            if moved and in_time and trial.cell.protocol == "quick" and trial.retimed < MOST_RETIMED:
                trial.forget_unsettled()
            else:
                trial.drifted |= moved and trial.settled < len(trial.seen)
                trial.settled = len(trial.seen)
        self._learn()
        through, self.pending = self.pending, []
        for trial in through:
            if trial.through(self.goal):
                self._record(trial, trial.measurement(self.goal))
            else:
                self.window.append(trial)

    def _learn(self) -> None:
        usual = self._spreads(lambda trial: trial.levels)
        for trial in self.window + self.pending:
            trial.usual = usual[trial.cell.devices]

    def _spreads(self, levels: Callable[[Trial], list[float]]) -> dict[int, Spread | None]:
        """By device count, with these visits of the cells under way."""
        seen = {devices: [*cells] for devices, cells in self.learnt.items()}
        for trial in self.window + self.pending:
            seen.setdefault(trial.cell.devices, []).append(levels(trial))
        return usual_spreads(seen)

    def _moved(self) -> bool:
        """Whether the reference is not what it was; False where there is none, or where it costs too much."""
        if self.total - len(self.impossible) < FEWEST_CELLS:
            return False
        if self.standard is None:
            timed_so_far = [trial for trial in self.window + self.pending if trial.seen]
            if not timed_so_far:
                return False
            quickest = min(timed_so_far, key=lambda trial: (-trial.cell.devices, trial.interval.median))
            self.standard = replace(quickest, seen=list(quickest.seen))
        elif self.reference.cost_seconds > self.reference.since_seconds:
            return False
        return self._read_reference()

    def _read_reference(self, again: bool = False) -> bool:
        """Whether it is not what it was; `again`: still not."""
        assert self.standard is not None
        step = self.standard.interval.median
        steps = REFERENCE_STEPS + max(REFERENCE_STEPS, math.ceil(REFERENCE_SECONDS / max(step, 1e-6)))
        try:
            [seen] = self._time(self.standard, steps)
        except (UserError, RunFailed):
            self.standard = None  # another will do
            return False
        interval = replace(self.standard, seen=[seen], usual=None).interval
        visits = self._visits_of(self.standard)
        if again:
            return self.reference.is_away(interval, visits)
        return self.reference.moved(interval, seen.block.wall_seconds, visits)

    def _visits_of(self, trial: Trial) -> Spread | None:
        """How far visits to such a cell lie from each other on a machine that stands still."""
        if trial.cell.protocol == "paper":
            return None  # its cells are visited once
        return self._spreads(lambda each: each.settled_levels).get(trial.cell.devices) or FIRST_GUESS

    def _record(self, trial: Trial, measurement: Measurement) -> None:
        self.store.append(measurement)
        if trial in self.window:
            self.window.remove(trial)
        if measurement.status == "ok":
            self.learnt[trial.cell.devices].append(trial.levels)
        self.done += 1
        if self.on_cell:
            self.on_cell(measurement)

    def _tell(self, trial: Trial, fraction: float | None = None) -> None:
        if self.on_progress is None:
            return
        under_way = sum(each.progress(self.goal) for each in self.window)
        share = (self.done + (under_way if fraction is None else fraction)) / self.total
        self.told = max(self.told, share)
        self.on_progress(Progress(self.done, self.total, self.told, trial.cell, trial.interval, len(trial.seen)))


def for_a_sweep(sentence: str) -> str:
    """What went wrong, without the options of `train` that `measure` has not."""
    for theirs, ours in (
        (smaller_batch("mirrored"), smaller_batch("pipeline")),
        ("a lower --learning-rate than", "a lower learning rate than"),
    ):
        sentence = sentence.replace(theirs, ours)
    return sentence
