"""Measure the cells of a grid in rounds of short visits.

    window    | a  b  c  d | ref | a  b  c  d | ref | a  c  d  e | ref ...      (b is finished, e takes its place)

A reference cell is timed between rounds. If its step time changed, the machine drifted: the blocks timed since it was
last stable are timed again, and so are blocks timed until it is stable again.
The spread between visits to a cell is estimated from all cells together.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter

from scalewise.core.errors import Failure, RankFailed, RunFailed, UserError, UsersCodeFailed
from scalewise.core.statistics import Interval
from scalewise.core.units import seconds_text
from scalewise.formats.store import Measurement, Status, Store
from scalewise.runtime.device_memory import memory_limit_bytes
from scalewise.sweep.drift import Reference, Spread, usual_spreads
from scalewise.sweep.grid import Cell
from scalewise.sweep.stopping_rule import Goal
from scalewise.sweep.timed_cell import Task, Timed, Trial, time_steps, timed, timed_epochs
from scalewise.training.memory_plan import unplanned_remedies
from scalewise.training.recovery import SURVIVABLE
from scalewise.training.results import Report
from scalewise.training.session_pool import Sessions

WINDOW = 6
"""Number of unfinished cells at a time. Their visits are apart in time, and a kill loses only these cells."""
MOST_RETIMED = 2
"""Largest number of times that the blocks of a cell are timed again because of drift."""
FEWEST_CELLS = 3
"""Fewest cells for which a reference cell is used; with fewer, visits to the same cell follow each other closely."""
REFERENCE_STEPS, REFERENCE_SECONDS = 6, 0.2
FIRST_GUESS = Spread(0.08, 30)
"""Spread assumed until enough cells have been visited; on two cores visits differ by 2% to 12%."""


@dataclass(frozen=True)
class Progress:
    """State of a sweep and of the cell being timed."""

    done: int
    total: int
    fraction: float
    """Finished fraction of the sweep, including unfinished cells."""
    cell: Cell
    interval: Interval
    """Interval of the cell's step time so far."""
    blocks: int
    """Number of visits to the cell so far."""

    @property
    def text(self) -> str:
        """The cell and its step time so far, with the width of the interval."""
        step = self.interval
        return f"{self.cell.text}: " + (f"{seconds_text(step.median)}, {step.width_text}" if step.n else "")


class Sweep:
    """Times the cells of a grid and records each one when it is finished.

    Cells for which the total budget leaves no time are counted by `not_begun`.
    """

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
        """Trials with enough blocks that still wait for the next check for drift."""
        self.step_seconds: dict[Cell, float] = {}
        self.reference_trial: Trial | None = None
        self.reference = Reference()
        self.drifting = False
        """Whether the machine's speed was still changing at the last check."""
        self.levels_of_finished: dict[int, list[list[float]]] = defaultdict(list)
        """Median step times of the visits to finished cells, by device count."""
        self.done = 0
        self.reported_fraction = 0.0
        """Largest fraction reported so far, so that timing a cell again does not move the progress bar back."""

    @property
    def not_begun(self) -> int:
        return len(self.waiting)

    def run(self) -> None:
        """Time and record the cells until all are finished or the total budget is used up."""
        for task in self.impossible:
            trial = Trial(task)
            self._record(trial, trial.unmeasured(task.obstacle_status, task.obstacle or ""))
        while (self.waiting or self.window or self.pending) and perf_counter() < self.deadline:
            while self.waiting and len(self.window) < self._window_size():
                self.window.append(Trial(self.waiting.popleft()))
            for trial in self._round_order():
                if perf_counter() < self.deadline:
                    self._visit(trial)
            self._settle()
        for trial in [*self.pending, *self.window]:
            trial.restore_dropped()
            if trial.interval.n:
                self._record(trial, trial.measurement(self.goal))
        self.waiting.extendleft(trial.task for trial in reversed(self.window))

    def _window_size(self) -> int:
        """Return how many cells to interleave: one in the paper's protocol, which times all epochs in one visit."""
        task = self.waiting[0]
        return 1 if task.cell.protocol == "paper" else WINDOW

    def _round_order(self) -> list[Trial]:
        """Order the trials of a round; on slices, which allow one session at a time, group them by device count."""
        if any(trial.cell.device_kind == "slice" for trial in self.window):
            return sorted(self.window, key=lambda trial: trial.cell.devices)
        return list(self.window)

    def _visit(self, trial: Trial) -> None:
        try:
            trial.seen += self._time_surely(trial, self._steps(trial))
        except UsersCodeFailed as error:
            self._record(trial, trial.unmeasured("failed", str(error)))
        except UserError as error:
            self._record(trial, trial.unmeasured("skipped", str(error)))
        except RankFailed as error:
            status: Status = "oom" if error.kind == "oom" else "failed"
            self._record(trial, trial.unmeasured(status, _with_measure_remedies(error.failure, trial.task).sentence))
        except RunFailed as error:
            self._record(trial, trial.unmeasured("failed", str(error)))
        else:
            self._update_spreads()
            self.step_seconds[trial.cell] = trial.interval.median
            self._report(trial)

    def _time_surely(self, trial: Trial, steps: int | None) -> list[Timed]:
        """Time a cell, once more in a fresh session if its ranks were lost; a cell is repeated once."""
        try:
            return self._time(trial, steps)
        except RankFailed as error:
            if error.kind not in SURVIVABLE or trial.repeated:
                raise
            trial.repeated = True
            return self._time(trial, steps)

    def _steps(self, trial: Trial) -> int | None:
        return None if trial.cell.protocol == "paper" else trial.steps(self.goal, self._expected(trial.cell))

    def _expected(self, cell: Cell) -> float | None:
        """Estimate an upper limit of the step time from other cells of the workload; None if there are none.

        A step is taken to grow at most in proportion to the batch.
        """
        estimates = [
            seconds * max(1.0, cell.batch / other.batch)
            for other, seconds in self.step_seconds.items()
            if other.workload == cell.workload
        ]
        return max(estimates, default=None)

    def _trace(self, trial: Trial) -> None:
        """Record a step with the transfers that run beside backward, for which the timed steps are not slowed down."""
        steps = trial.traced_steps()
        if not steps or perf_counter() >= self.deadline:
            return
        with suppress(UserError, RunFailed):  # the cell is timed; without this visit, it has no such transfers
            [trial.traced] = self._time(trial, steps, traced=True)

    def _time(self, trial: Trial, steps: int | None, traced: bool = False) -> list[Timed]:
        task, cell = trial.task, trial.cell
        request = task.request(steps)
        request = replace(request, settings=replace(request.settings, traced=traced))

        def on_report(_: int, report: Report) -> None:
            if steps is None:
                self._report(trial, report.steps_done / report.steps)

        placement, outcomes, seconds = self.sessions.run(
            cell.strategy, task.placement, time_steps, request, on_report=on_report
        )
        self.reference.since_seconds += seconds
        if steps is None:
            return timed_epochs(request, placement, outcomes, seconds)
        return [timed(request, placement, outcomes, seconds)]

    def _settle(self) -> None:
        """Check whether the machine drifted while the latest blocks were timed, then record finished cells."""
        for trial in [trial for trial in self.window if trial.is_finished(self.goal)]:
            self.window.remove(trial)
            self.pending.append(trial)
        in_time = perf_counter() < self.deadline
        at_the_end = not in_time or not (self.waiting or self.window)
        if self.reference_trial and not self.reference.due() and not self.drifting and not at_the_end:
            return
        moved = self._reference_moved()
        drifted, self.drifting = moved or self.drifting, moved and in_time and self._time_reference(again=True)
        in_time = perf_counter() < self.deadline
        for trial in self.pending + self.window:
            if drifted and in_time and trial.cell.protocol == "quick" and trial.retimed < MOST_RETIMED:
                trial.drop_unsettled()
            else:
                trial.drifted |= drifted and trial.settled < len(trial.seen)
                trial.settled = len(trial.seen)
        self._update_spreads()
        finished, self.pending = self.pending, []
        for trial in finished:
            if trial.is_finished(self.goal):
                self._trace(trial)
                self._record(trial, trial.measurement(self.goal))
            else:
                self.window.append(trial)

    def _update_spreads(self) -> None:
        usual = self._spreads(lambda trial: trial.levels)
        for trial in self.window + self.pending:
            trial.usual = usual[trial.cell.devices]

    def _spreads(self, levels: Callable[[Trial], list[float]]) -> dict[int, Spread | None]:
        """Estimate the spread between visits by device count; `levels` selects the visits of unfinished cells."""
        levels_by_count = {devices: [*cells] for devices, cells in self.levels_of_finished.items()}
        for trial in self.window + self.pending:
            levels_by_count.setdefault(trial.cell.devices, []).append(levels(trial))
        return usual_spreads(levels_by_count)

    def _reference_moved(self) -> bool:
        """Time the reference cell and return whether its step time changed; False if it is missing or too costly."""
        if self.total - len(self.impossible) < FEWEST_CELLS:
            return False
        if self.reference_trial is None:
            timed_trials = [trial for trial in self.window + self.pending if trial.seen]
            if not timed_trials:
                return False
            fastest = min(timed_trials, key=lambda trial: (-trial.cell.devices, trial.interval.median))
            self.reference_trial = replace(fastest, seen=list(fastest.seen))
        elif self.reference.cost_seconds > self.reference.since_seconds:
            return False
        return self._time_reference()

    def _time_reference(self, again: bool = False) -> bool:
        """Return whether the reference cell's step time changed; with `again`, without recording the visit."""
        assert self.reference_trial is not None
        step = self.reference_trial.interval.median
        steps = REFERENCE_STEPS + max(REFERENCE_STEPS, math.ceil(REFERENCE_SECONDS / max(step, 1e-6)))
        try:
            [visit] = self._time(self.reference_trial, steps)
        except (UserError, RunFailed):
            self.reference_trial = None  # the next check chooses another cell
            return False
        interval = replace(self.reference_trial, seen=[visit], usual=None).interval
        spread = self._spread_of_visits(self.reference_trial)
        if again:
            return self.reference.is_away(interval, spread)
        return self.reference.moved(interval, visit.block.wall_seconds, spread)

    def _spread_of_visits(self, trial: Trial) -> Spread | None:
        """Return the spread of visits to such a cell while the machine's speed does not change."""
        if trial.cell.protocol == "paper":
            return None  # its cells are visited once
        return self._spreads(lambda other: other.settled_levels).get(trial.cell.devices) or FIRST_GUESS

    def _record(self, trial: Trial, measurement: Measurement) -> None:
        self.store.append(measurement)
        if trial in self.window:
            self.window.remove(trial)
        if measurement.status == "ok":
            self.levels_of_finished[trial.cell.devices].append(trial.levels)
        self.done += 1
        if self.on_cell:
            self.on_cell(measurement)

    def _report(self, trial: Trial, fraction: float | None = None) -> None:
        if self.on_progress is None:
            return
        unfinished = sum(other.progress(self.goal) for other in self.window)
        share = (self.done + (unfinished if fraction is None else fraction)) / self.total
        self.reported_fraction = share = max(self.reported_fraction, share)
        self.on_progress(Progress(self.done, self.total, share, trial.cell, trial.interval, len(trial.seen)))


def _with_measure_remedies(failure: Failure, task: Task) -> Failure:
    """Return the failure with only those remedies that `measure` has options for."""
    if failure.kind != "oom":
        return failure
    limited = task.placement.device_kind != "cpu" or memory_limit_bytes() is not None
    remedies = unplanned_remedies(failure, task.cell.strategy, limited=limited, can_accumulate=False)
    return replace(failure, remedies=remedies)
