"""Sweeps on a simulated machine: order of visits, drift, budgets and failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scalewise.core.errors import Accumulate, Failure, LowerLearningRate, RankFailed, RunFailed, SmallerBatch, UserError
from scalewise.core.training_options import Settings
from scalewise.data.dataset import DataRequest
from scalewise.formats.store import Environment, Measurement, Protocol, Store
from scalewise.launch.placement import Placement
from scalewise.models.footprint import footprint_of
from scalewise.strategies.single import Single
from scalewise.sweep import sweep as sweep_module
from scalewise.sweep.grid import Cell
from scalewise.sweep.stopping_rule import Goal
from scalewise.sweep.sweep import Progress, Sweep
from scalewise.sweep.timed_cell import Task
from scalewise.training.results import Outcome, Request
from tests.tiny import float32

FOOTPRINT = footprint_of(float32(), float32().data(DataRequest()))
HERE = Environment(hardware={"cpu": "made up"})
SAMPLES, START_UP_SECONDS = 1000, 0.1


@dataclass
class SimulatedMachine:
    """Stand-in for sessions: a step takes a millisecond per sample times the current pace."""

    pace: Callable[[float], float] = lambda _: 1.0
    failures: dict[int, Exception] = field(default_factory=dict)
    """Exception that a batch size raises."""
    losses: dict[int, list[Exception]] = field(default_factory=dict)
    """Exceptions of the first visits to a batch size."""
    seconds: float = 0.0
    """Simulated time."""
    visits: list[int] = field(default_factory=list)
    """Batch sizes in the order of their visits."""
    random: Random = field(default_factory=lambda: Random(0))

    def run(
        self, _: object, placement: Placement, _task: object, request: Request, on_report: object
    ) -> tuple[Placement, list[Any], float]:
        batch, before = request.settings.batch, self.seconds
        assert on_report is not None
        self.visits.append(batch)
        if batch in self.failures:
            raise self.failures[batch]
        if self.losses.get(batch):
            raise self.losses[batch].pop()
        self.seconds += START_UP_SECONDS
        steps = []
        for _step in range(request.settings.total_steps(SAMPLES)):
            steps.append(batch * 1e-3 * self.pace(self.seconds) * self.random.gauss(1, 0.003))
            self.seconds += steps[-1]
        per_epoch = SAMPLES // batch
        outcome = Outcome("made up", SAMPLES, 1, "eager", "device", len(steps), all_seconds=steps)
        outcome.epoch_seconds = [
            sum(steps[start : start + per_epoch]) for start in range(0, len(steps) - per_epoch + 1, per_epoch)
        ]
        outcome.phases = {"forward": steps[-1]}
        outcome.footprint = FOOTPRINT
        return placement, [outcome], self.seconds - before


def task_of(batch: int, protocol: Protocol = "quick", obstacle: str | None = None) -> Task:
    cell = Cell("made-up", Single(), 1, "cpu", 1, None, batch, "fp32", "adam", protocol, "eager")

    def request(steps: int | None) -> Request:
        return Request("made-up", Single(), Settings(batch, 20 if steps is None else None, steps))

    return Task(cell, Placement(1, "cpu"), request, SAMPLES, HERE.id, obstacle)


def swept(
    folder: Path, machine: SimulatedMachine, *tasks: Task, goal: Goal | None = None, **more: Any
) -> tuple[list[Measurement], Sweep]:
    with Store(folder) as store:
        store.add_environment(HERE)
        sweep = Sweep(tasks, store, machine, goal or Goal(), **more)  # type: ignore[arg-type]
        sweep.run()
    return Store.read(folder), sweep


def test_cells_take_turns(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    measurements, _ = swept(tmp_path, machine, task_of(10), task_of(100))
    assert machine.visits == [10, 100] * 6
    assert {cell.batch: cell.step_seconds.median for cell in measurements if cell.step_seconds} == {
        10: pytest.approx(0.01, rel=0.01),
        100: pytest.approx(0.1, rel=0.01),
    }
    assert [cell.flags for cell in measurements] == [[], []]
    assert [cell.epoch_seconds for cell in measurements] == [pytest.approx(1.0, rel=0.01)] * 2


def test_the_first_visit_to_a_cell_does_not_count(tmp_path: Path) -> None:
    """New ranks touch memory for the first time."""
    machine = SimulatedMachine()
    machine.pace = lambda _: 1.5 if len(machine.visits) == 1 else 1.0
    [cell], _ = swept(tmp_path, machine, task_of(100))
    assert cell.flags == []
    assert cell.step_seconds is not None
    assert cell.step_seconds.high < 0.102
    assert cell.epoch_seconds == pytest.approx(1.0, rel=0.01)
    assert cell.phases == pytest.approx({"forward": cell.step_seconds.median})


def test_a_reference_is_timed_between_rounds(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    swept(tmp_path, machine, task_of(100), task_of(10), task_of(50))
    assert machine.visits[:4] == [100, 10, 50, 10]
    assert machine.visits.count(10) > 3


def test_visits_during_a_slowdown_are_timed_again(tmp_path: Path) -> None:
    """Other load slows the machine down for two seconds."""
    machine = SimulatedMachine(pace=lambda seconds: 1.5 if 1.5 < seconds < 3.5 else 1.0)
    measurements, _ = swept(tmp_path, machine, *map(task_of, (10, 20, 50, 100, 40)))
    assert [cell.flags for cell in measurements] == [[]] * 5
    for cell in measurements:
        assert cell.step_seconds is not None
        assert cell.step_seconds.median == pytest.approx(cell.batch * 1e-3, rel=0.01)


def test_visits_are_timed_again_until_the_machine_is_stable(tmp_path: Path) -> None:
    """A slowdown starts in one round and ends in the next.

    The reference cell is back to normal at the end of the second round, although the round's first visits were slow.
    """
    machine = SimulatedMachine(pace=lambda seconds: 1.5 if 14 < seconds < 19 else 1.0)
    measurements, sweep = swept(tmp_path, machine, *map(task_of, (10, 20, 50, 100, 40)), goal=Goal(0.2, 8))
    assert machine.seconds > 19
    assert [cell.flags for cell in measurements] == [[]] * 5
    for levels in sweep.levels_of_finished[1]:
        assert max(levels) < 1.02 * min(levels)


def test_noisy_visits_without_drift_are_not_repeated(tmp_path: Path) -> None:
    """Visits vary by 10% around the same mean, as with two ranks that share two cores with gloo's threads."""
    paces = [Random(number).gauss(1, 0.1) for number in range(1000)]
    machine = SimulatedMachine()
    machine.pace = lambda _: paces[len(machine.visits)]
    measurements, sweep = swept(tmp_path, machine, *map(task_of, (10, 20, 50, 100, 40)), goal=Goal(2, 5))
    assert len(sweep.reference.history) > 5
    assert [cell.flags for cell in measurements] == [["interval-not-reached"]] * 5
    for cell in measurements:
        assert cell.step_seconds is not None
        assert cell.step_seconds.low < cell.batch * 1e-3 < cell.step_seconds.high


def test_cells_of_a_drifting_machine_are_flagged(tmp_path: Path) -> None:
    """The machine gets slower from visit to visit."""
    machine = SimulatedMachine()
    machine.pace = lambda _: 1 + len(machine.visits) / 8
    measurements, _ = swept(tmp_path, machine, *map(task_of, (10, 20, 50)), goal=Goal(2, 5))
    assert any("drift" in cell.flags for cell in measurements)
    assert len(measurements) == 3


def test_cells_are_recorded_as_soon_as_they_are_finished(tmp_path: Path) -> None:
    recorded: list[tuple[int, int]] = []
    machine = SimulatedMachine()
    swept(
        tmp_path,
        machine,
        *map(task_of, (1, 2, 4, 5, 8, 10, 16, 20, 25, 32, 40, 50, 64, 80, 100, 125, 160, 200)),
        on_cell=lambda cell: recorded.append((cell.batch, len(machine.visits))),
    )
    assert len(recorded) == 18
    assert recorded[0][1] < len(machine.visits) / 2


def test_a_cell_ended_by_its_budget_is_flagged(tmp_path: Path) -> None:
    machine = SimulatedMachine(random=Random(1))
    machine.pace = lambda _: machine.random.choice([1.0, 3.0])
    measurements, _ = swept(tmp_path, machine, task_of(10), goal=Goal(2, 3))
    assert measurements[0].flags == ["interval-not-reached"]
    assert 3 <= machine.seconds < 6


def test_narrow_intervals_at_the_end_of_the_total_budget_are_not_flagged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two repeats of each of nine cells determine the spread between visits, though no cell has three repeats yet."""
    machine = SimulatedMachine()
    monkeypatch.setattr(sweep_module, "perf_counter", lambda: machine.seconds)
    monkeypatch.setattr(sweep_module, "WINDOW", 9)
    tasks = [task_of(batch) for batch in (10, 20, 25, 40, 50, 100, 125, 200, 250)]
    measurements, _ = swept(tmp_path, machine, *tasks, budget_seconds=16.0)
    assert machine.visits.count(20) == 3
    assert [cell.flags for cell in measurements if cell.step_seconds and cell.step_seconds.width < 0.02] == [[]] * 9


def test_the_total_budget_leaves_cells_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SimulatedMachine()
    monkeypatch.setattr(sweep_module, "perf_counter", lambda: machine.seconds)
    tasks = [task_of(batch) for batch in (10, 20, 25, 40, 50, 100, 125, 200)]
    measurements, sweep = swept(tmp_path, machine, *tasks, budget_seconds=4.0)
    assert 4.0 <= machine.seconds < 6.0
    assert sweep.not_begun == 8 - len(measurements) > 0


def test_a_total_budget_that_ends_during_drift_keeps_the_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no time to repeat the affected visits, so they are flagged."""
    machine = SimulatedMachine()
    machine.pace = lambda seconds: 1.0 if seconds < 1.2 else 2.0
    monkeypatch.setattr(sweep_module, "perf_counter", lambda: machine.seconds)
    measurements, sweep = swept(tmp_path, machine, *map(task_of, (10, 20, 40)), budget_seconds=1.8)
    assert {cell.batch: "drift" in cell.flags for cell in measurements} == {
        10: True,
        20: True,
        40: False,
    }
    assert {cell.batch: cell.epoch_seconds for cell in measurements}[20] == pytest.approx(
        2.0, rel=0.01
    )  # of its second visit
    assert sweep.not_begun == 0


def test_cells_with_few_visits_share_the_spread_between_visits(tmp_path: Path) -> None:
    """Visits differ by 2%, and the budget ends each cell after two or three visits.

    Student's t over the visits of one cell alone would give intervals 10% to 40% wide.
    """
    machine = SimulatedMachine(random=Random(4))
    noise = Random(5)
    paces: dict[int, float] = {}
    machine.pace = lambda _: paces.setdefault(len(machine.visits), noise.gauss(1, 0.02))
    measurements, _ = swept(tmp_path, machine, *map(task_of, (100, 110, 120, 125, 200, 250)), goal=Goal(2, 3.0))
    for cell in measurements:
        assert cell.step_seconds is not None
        assert 0.02 < cell.step_seconds.width < 0.12
        assert cell.step_seconds.low < cell.batch * 1e-3 < cell.step_seconds.high


def test_the_interval_of_a_single_visit_includes_the_spread_between_visits(tmp_path: Path) -> None:
    """The steps of the visit agree within a percent, but visits to the other cells differ by 5%."""
    machine = SimulatedMachine(random=Random(4))
    noise = Random(5)
    paces: dict[int, float] = {}
    machine.pace = lambda _: paces.setdefault(len(machine.visits), noise.gauss(1, 0.05))
    measurements, _ = swept(tmp_path, machine, *map(task_of, (40, 50, 80, 100, 110, 125, 1000)), goal=Goal(2, 2.5))
    [slow] = [cell.step_seconds for cell in measurements if cell.batch == 1000]
    assert slow is not None
    assert slow.n == 2
    assert slow.width > 0.1


def test_failures_of_cells_are_recorded_and_the_sweep_continues(tmp_path: Path) -> None:
    machine = SimulatedMachine(
        failures={
            10: RankFailed(Failure(1, "oom", "full", "rank 1", remedies=(SmallerBatch(), Accumulate(2)))),
            20: RankFailed(Failure(1, "died", "was killed (signal 9)", "rank 1")),
            25: RunFailed("the loss became nan at step 3", LowerLearningRate(1)),
            40: UserError("4 stages: too many; or few", "use 2", "a, b"),
        }
    )
    tasks = [*map(task_of, (10, 20, 25, 40, 50)), task_of(2000, obstacle="--batch is 2,000")]
    measurements, _ = swept(tmp_path, machine, *tasks)
    assert {cell.batch: (cell.status, cell.reason) for cell in measurements} == {
        2000: ("skipped", "--batch is 2,000"),
        10: ("oom", "rank 1 ran out of memory: full; a smaller --batch needs less memory"),
        20: ("failed", "rank 1 was killed (signal 9)"),
        25: ("failed", "the loss became nan at step 3; a learning rate below 1 may help"),
        40: ("skipped", "4 stages: too many; or few (a, b); use 2"),
        50: ("ok", None),
    }
    assert 2000 not in machine.visits


def test_a_cell_that_loses_its_ranks_is_repeated_once(tmp_path: Path) -> None:
    killed = RankFailed(Failure(0, "died", "was killed (signal 9)", "rank 0"))
    full = RankFailed(Failure(0, "oom", "no memory", "rank 0"))
    machine = SimulatedMachine(losses={10: [killed], 20: [killed, killed], 50: [full]})
    measurements, _ = swept(tmp_path, machine, *map(task_of, (10, 20, 50, 100)))
    cells = {cell.batch: cell for cell in measurements}
    assert {batch: cell.status for batch, cell in cells.items()} == {10: "ok", 20: "failed", 50: "oom", 100: "ok"}
    assert cells[20].reason == "rank 0 was killed (signal 9)"
    assert [machine.visits.count(batch) for batch in (20, 50)] == [2, 1]


def test_the_papers_protocol_runs_20_epochs_and_drops_the_first(tmp_path: Path) -> None:
    machine = SimulatedMachine(pace=lambda seconds: 5.0 if seconds < 1.0 else 1.0)
    measurements, _ = swept(tmp_path, machine, task_of(100, "paper"))
    assert machine.visits == [100]
    assert measurements[0].epoch_seconds == pytest.approx(1.0, rel=0.01)
    assert measurements[0].step_seconds is not None
    assert measurements[0].step_seconds.n == 190
    assert measurements[0].flags == []


def test_progress_grows_to_the_end(tmp_path: Path) -> None:
    reports: list[Progress] = []
    swept(tmp_path, SimulatedMachine(), *map(task_of, (10, 20, 50)), on_progress=reports.append)
    assert (reports[0].done, reports[0].total) == (0, 3)
    assert reports[0].fraction < 0.2
    assert reports[-1].fraction > 0.9
    assert reports[0].cell.batch == 10
    assert reports[-1].interval.width < 0.02


def test_progress_never_decreases(tmp_path: Path) -> None:
    reports: list[Progress] = []
    machine = SimulatedMachine(pace=lambda seconds: 1.5 if 1.5 < seconds < 3.5 else 1.0)
    swept(tmp_path, machine, *map(task_of, (10, 20, 50, 100, 40)), on_progress=reports.append)
    fractions = [report.fraction for report in reports]
    assert fractions == sorted(fractions)
