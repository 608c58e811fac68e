"""Time the steps of a cell and build its measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from scalewise.core.statistics import Interval
from scalewise.core.timeline import RecordedStep, recorded_step
from scalewise.engines.base import Place
from scalewise.formats.store import DRIFT, INTERVAL_NOT_REACHED, NO_GRAPH, OVERSUBSCRIBED, Measurement, Status
from scalewise.formats.train_result import BytesPerStep
from scalewise.launch.placement import Placement
from scalewise.models.workload import Workload
from scalewise.runtime.device_memory import forget_peak_memory
from scalewise.sweep.drift import Spread
from scalewise.sweep.grid import Block, Cell, block_of, counted, epoch_of, interval_of_blocks, levels_of, phases_of
from scalewise.sweep.stopping_rule import Goal, first_steps, is_known, next_steps, progress, spent_seconds
from scalewise.training import asynchronous
from scalewise.training.loop import train_on
from scalewise.training.results import Outcome, Request, bytes_per_step, pace_of, slowest, timeline_of
from scalewise.training.tasks import Rank, train_task

KEPT_STEPS = 7
"""Number of last steps of which every rank returns its spans; a typical one of them is recorded."""


def time_steps(worker: Rank, request: Request) -> Outcome:
    """Run the steps of a request on one rank, as `train` does, but without the final evaluation."""
    forget_peak_memory(worker.device)
    request = replace(request, workload=_loaded(request))
    if request.strategy.asynchronous:
        outcome = train_task(worker, request)
    else:
        place = Place(worker.rank, worker.world, worker.device, worker.gpus, worker.shared, worker.timeout_seconds)
        outcome = train_on(place, request, worker.report, evaluate=False)
    last = max((span.step for span in outcome.spans), default=0)
    outcome.spans = [span for span in outcome.spans if span.step > last - KEPT_STEPS]
    outcome.losses = []
    return outcome


_loaded_workloads: dict[tuple[object, ...], Workload] = {}
"""The last workloads of this rank with their data. Names are unique within a sweep, and ranks live for one sweep."""


def _loaded(request: Request) -> Workload:
    """Return a workload with its data loaded; cached, so that later visits on the same rank do not load it again."""
    name = request.workload if isinstance(request.workload, str) else request.workload.name
    key = (name, request.input_shape, request.classes, request.data)
    if key not in _loaded_workloads:
        while len(_loaded_workloads) > 1:
            del _loaded_workloads[next(iter(_loaded_workloads))]
        workload = request.resolved()
        data = workload.data(request.data)
        _loaded_workloads[key] = replace(workload, data=lambda _: data)
    return _loaded_workloads[key]


@dataclass(frozen=True)
class Timed:
    """Result of one visit to a cell."""

    block: Block
    execution: str
    bytes_per_step: BytesPerStep
    peak_memory_bytes: int | None
    timeline: RecordedStep | None = None
    """A typical step of the last ones."""


def timed(request: Request, placement: Placement, outcomes: list[Outcome], wall_seconds: float) -> Timed:
    """Combine the outcomes of all ranks to the result of a visit; the slowest rank determines the times."""
    first, batch = outcomes[0], request.settings.batch
    phases = outcomes[pace_of([outcome.phases for outcome in outcomes])].phases
    if any(outcome.updates for outcome in outcomes):
        rate = asynchronous.samples_per_second(outcomes)
        block = Block(asynchronous.step_seconds(outcomes), epochs=[first.samples / rate] if rate else [])
    else:
        steps = slowest([outcome.all_seconds for outcome in outcomes])
        epochs = slowest([outcome.epoch_seconds for outcome in outcomes])
        block = block_of(steps, epochs, first.samples, batch, first.execution == "graph")
    return Timed(
        replace(block, phases=phases, wall_seconds=wall_seconds),
        first.execution,
        bytes_per_step(request, placement, outcomes),
        max((outcome.peak_memory_bytes or 0 for outcome in outcomes), default=0) or None,
        recorded_step(timeline_of(outcomes), request.strategy.asynchronous),
    )


def timed_epochs(request: Request, placement: Placement, outcomes: list[Outcome], wall_seconds: float) -> list[Timed]:
    """Return one result per epoch, as in the study's protocol; the first epoch is dropped."""
    whole = timed(request, placement, outcomes, wall_seconds)
    first, batch = outcomes[0], request.settings.batch
    if any(outcome.updates for outcome in outcomes):
        epochs = asynchronous.epoch_seconds(outcomes, request.settings)[1:]
        seconds = asynchronous.step_seconds(outcomes)
        per_epoch = -(-len(seconds) // max(1, len(epochs)))
        parts = [seconds[start : start + per_epoch] for start in range(0, len(seconds), per_epoch)]
    else:
        epochs = slowest([outcome.epoch_seconds for outcome in outcomes])[1:]
        steps, per_epoch = slowest([outcome.all_seconds for outcome in outcomes]), -(-first.samples // batch)
        whole_steps = per_epoch if per_epoch == 1 or not first.samples % batch else per_epoch - 1
        parts = [steps[start : start + whole_steps] for start in range(per_epoch, len(steps), per_epoch)]
    blocks = [Block(part, phases=whole.block.phases) for part in parts]
    blocks[0] = replace(blocks[0], epochs=epochs, wall_seconds=wall_seconds)
    return [replace(whole, block=block) for block in blocks]


@dataclass(frozen=True)
class Task:
    """A cell with everything needed to run it."""

    cell: Cell
    placement: Placement
    request: Callable[[int | None], Request]
    """Create the request for a number of steps; None stands for the epochs of the protocol."""
    samples: int
    """Samples per epoch."""
    environment: str
    """Id of the environment."""
    obstacle: str | None = None
    """Reason why the cell cannot run on this machine."""
    obstacle_status: Status = "skipped"
    """Status of the cell if there is an obstacle."""


TRACED_STEPS, TRACED_SECONDS = 8, 4.0
"""Steps of the visit that records transfers, and the longest time that it may take."""


@dataclass
class Trial:
    """A cell being timed: the visits so far and their statistics."""

    task: Task
    seen: list[Timed] = field(default_factory=list)
    """Results of the visits so far."""
    settled: int = 0
    """Number of visits known to be free of drift."""
    retimed: int = 0
    """Number of times that visits were dropped because of drift."""
    repeated: bool = False
    """Whether the cell was timed again after it lost its ranks."""
    drifted: bool = False
    """Whether visits affected by drift are included."""
    dropped: list[Timed] = field(default_factory=list)
    """Visits dropped because of drift; used if there is no time to repeat them."""
    traced: Timed | None = None
    """Visit that also recorded transfers beside backward; its times do not count."""
    usual: Spread | None = None
    """Spread between visits, estimated from all cells of the sweep."""
    started: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))

    @property
    def cell(self) -> Cell:
        return self.task.cell

    @property
    def blocks(self) -> list[Block]:
        return [timed.block for timed in self.seen]

    @property
    def counted(self) -> Sequence[Block]:
        """Blocks that count: without the first one, which the paper's protocol has dropped already."""
        return counted(self.blocks) if self.cell.protocol == "quick" else self.blocks

    @property
    def interval(self) -> Interval:
        """95% interval of the step time; after a single visit at least as wide as the interval of its steps."""
        steps = [block.seconds for block in self.counted]
        interval = interval_of_blocks(steps, self.usual)
        if len(self.seen) != 1 or self.usual is None:
            return interval
        of_steps = interval_of_blocks(steps)
        return replace(interval, low=min(interval.low, of_steps.low), high=max(interval.high, of_steps.high))

    @property
    def levels(self) -> list[float]:
        """Median step times of the counted visits; empty in the paper's protocol, whose epochs are one visit."""
        return levels_of([block.seconds for block in self.counted]) if self.cell.protocol == "quick" else []

    @property
    def settled_levels(self) -> list[float]:
        """Median step times of the counted visits that are known to be free of drift."""
        return replace(self, seen=self.seen[: self.settled]).levels

    @property
    def spent_seconds(self) -> float:
        return spent_seconds(self.blocks)

    def steps(self, goal: Goal, expected_seconds: float | None) -> int:
        """Return the steps of the next block, with extra steps for short last batches, which do not count."""
        graph = self.cell.execution == "graph"
        if self.interval.n:
            steps = next_steps(self.blocks, goal, graph)
        else:
            steps = first_steps(expected_seconds, goal.budget_seconds, graph)
        whole_batches, remainder = divmod(self.task.samples, self.cell.batch)
        return steps + steps // whole_batches if remainder else steps

    def is_finished(self, goal: Goal) -> bool:
        if self.cell.protocol == "paper":
            return bool(self.seen)
        return bool(self.seen) and goal.ends(self.blocks, self.usual)

    def progress(self, goal: Goal) -> float:
        """Return the progress of the cell from 0 to 1."""
        return progress(self.interval, len(self.counted), self.spent_seconds, goal, self.usual)

    def traced_steps(self) -> int:
        """Return the number of steps of a visit that records transfers beside backward; 0 if it is not needed."""
        strategy, step = self.cell.strategy, self.interval.median
        hides_transfers = self.cell.devices > 1 and strategy.overlaps and not strategy.asynchronous
        is_short = TRACED_STEPS * step <= TRACED_SECONDS
        return TRACED_STEPS if hides_transfers and is_short and self.cell.device_kind == "cpu" else 0

    def drop_unsettled(self) -> None:
        """Drop the visits affected by drift, except the first one, which is only a warm-up."""
        if self.settled == len(self.seen):
            return
        remaining = max(self.settled, 1)
        self.dropped = self.seen[remaining:] or self.dropped
        del self.seen[remaining:]
        self.retimed += 1

    def restore_dropped(self) -> None:
        """Use the dropped visits after all if only the first visit is left."""
        if self.retimed and len(self.seen) == 1:
            self.seen, self.drifted = [*self.seen, *self.dropped], True

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
            timeline=(self.traced or last).timeline,
            flags=[flag for flag, raised in flags.items() if raised],
            environment=self.task.environment,
            started=self.started,
        )

    def reached(self, goal: Goal) -> bool:
        """Return whether the interval is narrow enough.

        A cell that ended because time ran out needs fewer visits: it did not stop at an interval narrow by chance.
        """
        if is_known(self.usual) and len(self.seen) > 1:
            return goal.is_met_by(self.interval)
        return goal.reached(self.interval, len(self.counted), self.usual)

    def unmeasured(self, status: Status, reason: str) -> Measurement:
        """Return the measurement of a cell without times, with the reason."""
        return self.cell.measured(status=status, reason=reason, environment=self.task.environment, started=self.started)
