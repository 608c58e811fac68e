"""A cell while it is being measured: its blocks so far, and the measurement they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from scalewise.measuring.block import Block, counted, epoch_of, interval_of_blocks, levels_of, phases_of
from scalewise.measuring.cell import Cell
from scalewise.measuring.spread import Spread
from scalewise.measuring.stopping import Goal, first_steps, is_known, next_steps, progress, spent_seconds
from scalewise.results.measurement import DRIFT, INTERVAL_NOT_REACHED, NO_GRAPH, OVERSUBSCRIBED, Measurement, Status
from scalewise.results.statistics import Interval
from scalewise.session.placement import Placement
from scalewise.training.request import Request
from scalewise.verbs.timing import Timed


@dataclass(frozen=True)
class Task:
    """A cell with all that is needed to run it."""

    cell: Cell
    placement: Placement
    request: Callable[[int | None], Request]
    """For so many steps; None: as many epochs as the protocol says."""
    samples: int
    environment: str
    obstacle: str | None = None
    """Why it cannot be run here at all."""
    without_a_run: Status = "skipped"
    """What it then is."""


@dataclass
class Trial:
    """Blocks after `settled` may have been timed while the machine was not itself."""

    task: Task
    seen: list[Timed] = field(default_factory=list)
    settled: int = 0
    retimed: int = 0
    drifted: bool = False
    forgotten: list[Timed] = field(default_factory=list)
    """While the machine moved: better than nothing, where there is no time for it again."""
    usual: Spread | None = None
    """Of visits to the cells of its sweep."""
    started: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))

    @property
    def cell(self) -> Cell:
        return self.task.cell

    @property
    def blocks(self) -> list[Block]:
        return [timed.block for timed in self.seen]

    @property
    def counted(self) -> Sequence[Block]:
        """The paper's protocol has dropped its first epoch."""
        return counted(self.blocks) if self.cell.protocol == "quick" else self.blocks

    @property
    def interval(self) -> Interval:
        """A first visit, which counts where there is no other, is no surer than its own steps make it either."""
        steps = [block.seconds for block in self.counted]
        found = interval_of_blocks(steps, self.usual)
        if len(self.seen) != 1 or self.usual is None:
            return found
        alone = interval_of_blocks(steps)
        return replace(found, low=min(found.low, alone.low), high=max(found.high, alone.high))

    @property
    def levels(self) -> list[float]:
        """Of its visits that count: what the sweep learns from it. Epochs in a row are no visits."""
        return levels_of([block.seconds for block in self.counted]) if self.cell.protocol == "quick" else []

    @property
    def settled_levels(self) -> list[float]:
        """Of those that were timed while the machine stood still."""
        return replace(self, seen=self.seen[: self.settled]).levels

    @property
    def spent_seconds(self) -> float:
        return spent_seconds(self.blocks)

    def steps(self, goal: Goal, expected_seconds: float | None) -> int:
        """Of the next block; more where some of them end an epoch with a short batch, which is not counted."""
        graph = self.cell.execution == "graph"
        if self.interval.n:
            wanted = next_steps(self.blocks, goal, graph)
        else:
            wanted = first_steps(expected_seconds, goal.budget_seconds, graph)
        whole, left = divmod(self.task.samples, self.cell.batch)
        return wanted + wanted // whole if left else wanted

    def through(self, goal: Goal) -> bool:
        if self.cell.protocol == "paper":
            return bool(self.seen)
        return bool(self.seen) and goal.ends(self.blocks, self.usual)

    def progress(self, goal: Goal) -> float:
        """From 0 to 1."""
        return progress(self.interval, len(self.counted), self.spent_seconds, goal, self.usual)

    def forget_unsettled(self) -> None:
        """But for the first: beside others it does not count, and what it prepared need not be prepared again."""
        if self.settled == len(self.seen):
            return
        kept = max(self.settled, 1)
        self.forgotten = self.seen[kept:] or self.forgotten
        del self.seen[kept:]
        self.retimed += 1

    def remember_forgotten(self) -> None:
        if self.retimed and len(self.seen) == 1:
            self.seen, self.drifted = [*self.seen, *self.forgotten], True

    def measurement(self, goal: Goal) -> Measurement:
        last, interval, cell = self.seen[-1], self.interval, self.cell
        flags = {
            INTERVAL_NOT_REACHED: cell.protocol == "quick" and not self.reached(goal),
            DRIFT: self.drifted,
            OVERSUBSCRIBED: self.task.placement.oversubscribed,
            NO_GRAPH: last.execution != cell.execution,
        }
        return cell.measured(
            execution=last.execution,
            step_seconds=interval,
            epoch_seconds=epoch_of(self.counted, self.task.samples, cell.batch),
            phases=phases_of(self.counted, interval.median),
            bytes_per_step=last.bytes_per_step,
            peak_memory_bytes=max((timed.peak_memory_bytes or 0 for timed in self.seen), default=0) or None,
            flags=[flag for flag, raised in flags.items() if raised],
            environment=self.task.environment,
            started=self.started,
        )

    def reached(self, goal: Goal) -> bool:
        """When time is up, fewer repeats do than would end a cell: it was not ended for being narrow by chance."""
        if is_known(self.usual) and len(self.seen) > 1:
            return goal.is_met_by(self.interval)
        return goal.reached(self.interval, len(self.counted), self.usual)

    def without(self, status: Status, reason: str) -> Measurement:
        """Of a cell that has no figures."""
        return self.cell.measured(status=status, reason=reason, environment=self.task.environment, started=self.started)
