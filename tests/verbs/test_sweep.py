"""How a sweep goes from cell to cell, on a machine whose speed is made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scalewise.data.data import DataRequest
from scalewise.errors import RunFailed, UserError
from scalewise.measuring.cell import Cell
from scalewise.measuring.stopping import Goal
from scalewise.results.environment import Environment
from scalewise.results.measurement import Measurement, Protocol
from scalewise.results.store import Store
from scalewise.session.failure import Failure, RankFailed
from scalewise.session.placement import Placement
from scalewise.step.settings import Settings
from scalewise.strategies.single import Single
from scalewise.training.outcome import Outcome
from scalewise.training.request import Request
from scalewise.verbs import sweep as sweep_module
from scalewise.verbs.sweep import Progress, Sweep
from scalewise.verbs.trial import Task
from scalewise.workloads.footprint import footprint_of
from tests.tiny import float32

FOOTPRINT = footprint_of(float32(), float32().data(DataRequest()))
HERE = Environment(hardware={"cpu": "made up"})
SAMPLES, START_UP_SECONDS = 1000, 0.1


@dataclass
class MadeUpMachine:
    """In place of sessions: a step takes a millisecond per sample, at the speed of the moment."""

    pace: Callable[[float], float] = lambda _: 1.0
    trouble: dict[int, Exception] = field(default_factory=dict)
    """By batch."""
    seconds: float = 0.0
    visits: list[int] = field(default_factory=list)
    """Batches, in turn."""
    random: Random = field(default_factory=lambda: Random(0))

    def run(
        self, _: object, placement: Placement, _task: object, request: Request, on_report: object
    ) -> tuple[Placement, list[Any], float]:
        batch, before = request.settings.batch, self.seconds
        assert on_report is not None
        self.visits.append(batch)
        if batch in self.trouble:
            raise self.trouble[batch]
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
    folder: Path, machine: MadeUpMachine, *tasks: Task, goal: Goal | None = None, **more: Any
) -> tuple[list[Measurement], Sweep]:
    with Store(folder) as store:
        store.add_environment(HERE)
        sweep = Sweep(tasks, store, machine, goal or Goal(), **more)  # type: ignore[arg-type]
        sweep.go()
    return Store.read(folder), sweep


def test_cells_take_turns(tmp_path: Path) -> None:
    machine = MadeUpMachine()
    found, _ = swept(tmp_path, machine, task_of(10), task_of(100))
    assert machine.visits == [10, 100] * 6
    assert {each.batch: each.step_seconds.median for each in found if each.step_seconds} == {
        10: pytest.approx(0.01, rel=0.01),
        100: pytest.approx(0.1, rel=0.01),
    }
    assert [each.flags for each in found] == [[], []]
    assert [each.epoch_seconds for each in found] == [pytest.approx(1.0, rel=0.01)] * 2


def test_the_first_visit_to_a_cell_does_not_count(tmp_path: Path) -> None:
    """Fresh ranks touch memory for the first time."""
    machine = MadeUpMachine()
    machine.pace = lambda _: 1.5 if len(machine.visits) == 1 else 1.0
    [found], _ = swept(tmp_path, machine, task_of(100))
    assert found.flags == []
    assert found.step_seconds is not None
    assert found.step_seconds.high < 0.102
    assert found.epoch_seconds == pytest.approx(1.0, rel=0.01)
    assert found.phases == pytest.approx({"forward": found.step_seconds.median})


def test_a_reference_is_timed_between_rounds(tmp_path: Path) -> None:
    machine = MadeUpMachine()
    swept(tmp_path, machine, task_of(100), task_of(10), task_of(50))
    assert machine.visits[:4] == [100, 10, 50, 10]
    assert machine.visits.count(10) > 3


def test_what_was_timed_while_the_machine_was_slow_is_timed_again(tmp_path: Path) -> None:
    """A neighbour takes a third of the speed for two seconds."""
    machine = MadeUpMachine(pace=lambda seconds: 1.5 if 1.5 < seconds < 3.5 else 1.0)
    found, _ = swept(tmp_path, machine, *map(task_of, (10, 20, 50, 100, 40)))
    assert [each.flags for each in found] == [[]] * 5
    for each in found:
        assert each.step_seconds is not None
        assert each.step_seconds.median == pytest.approx(each.batch * 1e-3, rel=0.01)


def test_what_is_timed_until_the_machine_has_come_to_rest_is_timed_again_too(tmp_path: Path) -> None:
    """A neighbour comes in one round and goes in the next: a reference that is itself again at the end of that one
    says nothing of its beginning."""
    machine = MadeUpMachine(pace=lambda seconds: 1.5 if 14 < seconds < 19 else 1.0)
    found, sweep = swept(tmp_path, machine, *map(task_of, (10, 20, 50, 100, 40)), goal=Goal(0.2, 8))
    assert machine.seconds > 19
    assert [each.flags for each in found] == [[]] * 5
    for levels in sweep.learnt[1]:
        assert max(levels) < 1.02 * min(levels)


def test_visits_that_lie_apart_on_a_machine_that_stands_still_are_all_kept(tmp_path: Path) -> None:
    """As between two ranks that share two cores with gloo's threads: by a tenth, but around the same centre."""
    paces = [Random(number).gauss(1, 0.1) for number in range(1000)]
    machine = MadeUpMachine()
    machine.pace = lambda _: paces[len(machine.visits)]
    found, sweep = swept(tmp_path, machine, *map(task_of, (10, 20, 50, 100, 40)), goal=Goal(2, 5))
    assert len(sweep.reference.history) > 5
    assert [each.flags for each in found] == [["interval-not-reached"]] * 5
    for each in found:
        assert each.step_seconds is not None
        assert each.step_seconds.low < each.batch * 1e-3 < each.step_seconds.high


def test_a_machine_that_never_settles_is_told_by_flags(tmp_path: Path) -> None:
    """It gets slower from visit to visit."""
    machine = MadeUpMachine()
    machine.pace = lambda _: 1 + len(machine.visits) / 8
    found, _ = swept(tmp_path, machine, *map(task_of, (10, 20, 50)), goal=Goal(2, 5))
    assert any("drift" in each.flags for each in found)
    assert len(found) == 3


def test_cells_are_recorded_as_they_end_not_at_the_end(tmp_path: Path) -> None:
    recorded: list[tuple[int, int]] = []
    machine = MadeUpMachine()
    swept(
        tmp_path,
        machine,
        *map(task_of, (1, 2, 4, 5, 8, 10, 16, 20, 25, 32, 40, 50, 64, 80, 100, 125, 160, 200)),
        on_cell=lambda each: recorded.append((each.batch, len(machine.visits))),
    )
    assert len(recorded) == 18
    assert recorded[0][1] < len(machine.visits) / 2


def test_the_budget_ends_a_cell_and_says_so(tmp_path: Path) -> None:
    machine = MadeUpMachine(random=Random(1))
    machine.pace = lambda _: machine.random.choice([1.0, 3.0])
    found, _ = swept(tmp_path, machine, task_of(10), goal=Goal(2, 3))
    assert found[0].flags == ["interval-not-reached"]
    assert 3 <= machine.seconds < 6


def test_a_total_budget_that_ends_with_a_narrow_interval_has_reached_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two repeats of each of nine cells tell how far visits lie apart, though none of the cells has three yet."""
    machine = MadeUpMachine()
    monkeypatch.setattr(sweep_module, "perf_counter", lambda: machine.seconds)
    monkeypatch.setattr(sweep_module, "WINDOW", 9)
    tasks = [task_of(batch) for batch in (10, 20, 25, 40, 50, 100, 125, 200, 250)]
    found, _ = swept(tmp_path, machine, *tasks, budget_seconds=16.0)
    assert machine.visits.count(20) == 3
    assert [each.flags for each in found if each.step_seconds and each.step_seconds.width < 0.02] == [[]] * 9


def test_the_total_budget_leaves_cells_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MadeUpMachine()
    monkeypatch.setattr(sweep_module, "perf_counter", lambda: machine.seconds)
    tasks = [task_of(batch) for batch in (10, 20, 25, 40, 50, 100, 125, 200)]
    found, sweep = swept(tmp_path, machine, *tasks, budget_seconds=4.0)
    assert 4.0 <= machine.seconds < 6.0
    assert sweep.not_begun == 8 - len(found) > 0


def test_a_total_budget_that_ends_while_the_machine_moves_keeps_what_was_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no time left to time it again: it is flagged instead."""
    machine = MadeUpMachine()
    machine.pace = lambda seconds: 1.0 if seconds < 1.2 else 2.0
    monkeypatch.setattr(sweep_module, "perf_counter", lambda: machine.seconds)
    found, sweep = swept(tmp_path, machine, *map(task_of, (10, 20, 40)), budget_seconds=1.8)
    assert {each.batch: "drift" in each.flags for each in found} == {10: True, 20: True, 40: False}
    assert {each.batch: each.epoch_seconds for each in found}[20] == pytest.approx(2.0, rel=0.01)  # of its second visit
    assert sweep.not_begun == 0


def test_cells_of_a_few_visits_learn_from_each_other_how_far_visits_lie_apart(tmp_path: Path) -> None:
    """Visits differ by 2 %, and the budget ends each cell after two or three: Student's t of those alone would give
    intervals of 10 to 40 %."""
    machine = MadeUpMachine(random=Random(4))
    noise = Random(5)
    paces: dict[int, float] = {}
    machine.pace = lambda _: paces.setdefault(len(machine.visits), noise.gauss(1, 0.02))
    found, _ = swept(tmp_path, machine, *map(task_of, (100, 110, 120, 125, 200, 250)), goal=Goal(2, 3.0))
    for each in found:
        assert each.step_seconds is not None
        assert 0.02 < each.step_seconds.width < 0.12
        assert each.step_seconds.low < each.batch * 1e-3 < each.step_seconds.high


def test_a_cell_whose_budget_ended_in_its_first_visit_is_no_surer_than_visits_are(tmp_path: Path) -> None:
    """Its steps agree within a percent, but visits of the other cells are 5 % apart."""
    machine = MadeUpMachine(random=Random(4))
    noise = Random(5)
    paces: dict[int, float] = {}
    machine.pace = lambda _: paces.setdefault(len(machine.visits), noise.gauss(1, 0.05))
    found, _ = swept(tmp_path, machine, *map(task_of, (40, 50, 80, 100, 110, 125, 1000)), goal=Goal(2, 2.5))
    [slow] = [each.step_seconds for each in found if each.batch == 1000]
    assert slow is not None
    assert slow.n == 2
    assert slow.width > 0.1


def test_trouble_in_a_cell_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    machine = MadeUpMachine(
        trouble={
            10: RankFailed(Failure(1, "oom", "rank 1 is full; a smaller --batch, or --accumulate 2, needs less")),
            20: RankFailed(Failure(1, "died", "rank 1 was killed (signal 9)")),
            25: RunFailed("the loss became nan at step 3; a lower --learning-rate than 1 may help"),
            40: UserError("--execution graph is not possible"),
        }
    )
    tasks = [*map(task_of, (10, 20, 25, 40, 50)), task_of(2000, obstacle="--batch is 2,000")]
    found, _ = swept(tmp_path, machine, *tasks)
    assert {each.batch: (each.status, each.reason) for each in found} == {
        2000: ("skipped", "--batch is 2,000"),
        10: ("oom", "rank 1 is full; a smaller --batch needs less"),
        20: ("failed", "rank 1 was killed (signal 9)"),
        25: ("failed", "the loss became nan at step 3; a lower learning rate than 1 may help"),
        40: ("skipped", "--execution graph is not possible"),
        50: ("ok", None),
    }
    assert 2000 not in machine.visits


def test_the_papers_protocol_runs_20_epochs_and_drops_the_first(tmp_path: Path) -> None:
    machine = MadeUpMachine(pace=lambda seconds: 5.0 if seconds < 1.0 else 1.0)
    found, _ = swept(tmp_path, machine, task_of(100, "paper"))
    assert machine.visits == [100]
    assert found[0].epoch_seconds == pytest.approx(1.0, rel=0.01)
    assert found[0].step_seconds is not None
    assert found[0].step_seconds.n == 190
    assert found[0].flags == []


def test_progress_grows_to_the_whole(tmp_path: Path) -> None:
    told: list[Progress] = []
    swept(tmp_path, MadeUpMachine(), *map(task_of, (10, 20, 50)), on_progress=told.append)
    assert (told[0].done, told[0].total) == (0, 3)
    assert told[0].fraction < 0.2
    assert told[-1].fraction > 0.9
    assert told[0].cell.batch == 10
    assert told[-1].interval.width < 0.02


def test_progress_does_not_fall_back_when_cells_are_timed_again(tmp_path: Path) -> None:
    told: list[Progress] = []
    machine = MadeUpMachine(pace=lambda seconds: 1.5 if 1.5 < seconds < 3.5 else 1.0)
    swept(tmp_path, machine, *map(task_of, (10, 20, 50, 100, 40)), on_progress=told.append)
    fractions = [each.fraction for each in told]
    assert fractions == sorted(fractions)
