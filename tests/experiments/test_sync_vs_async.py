"""Synchronous against asynchronous training: what counts as a comparison, and that no run is done twice."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scalewise.errors import RunFailed, UserError
from scalewise.experiments import sync_vs_async
from scalewise.experiments.curves import Point
from scalewise.experiments.sync_vs_async import ASYNCHRONOUS, CONDITIONS, SYNCHRONOUS, conclude
from scalewise.experiments.sync_vs_async_death import train_through_death
from scalewise.experiments.sync_vs_async_runs import Ran
from scalewise.experiments.sync_vs_async_words import Trial, findings, shared_cores
from scalewise.results.experiment import ExperimentResult
from scalewise.verbs.train import train

TARGET = 0.2


def falling(seconds: float, **more: Any) -> Ran:
    """A loss that comes down from 1 to 0 in so many seconds, in 100 updates."""
    return Ran([Point(seconds * part / 100, 1 - part / 100, 16) for part in range(1, 101)], 160.0, **more)


def with_a_death(synchronous: Ran, asynchronous: Ran, reached: float = 3.0) -> list[str]:
    times = {"a dying worker": {SYNCHRONOUS: 8.0, ASYNCHRONOUS: reached}}
    ran = {"a dying worker": {SYNCHRONOUS: synchronous, ASYNCHRONOUS: asynchronous}}
    return findings([Trial(0, TARGET, times, ran)])


def test_a_loss_that_was_reached_before_the_death_is_no_win() -> None:
    choice, about, *_ = with_a_death(falling(10, death_seconds=4.0), falling(10, death_seconds=3.9))
    assert choice == "Nothing could be compared."
    assert about == (
        "With a dying worker, loss 0.20 was reached before the death, asynchronously after 3 s (the death came at "
        "3.9 s): this says nothing about deaths."
    )


def test_a_death_before_the_loss_is_compared_and_its_price_told() -> None:
    choice, about, price, *_ = with_a_death(
        falling(10, death_seconds=1.0, resumed_seconds=5.5), falling(10, death_seconds=0.9)
    )
    assert choice == "Sooner at loss 0.20: asynchronous training with a dying worker."
    assert about.endswith("8 s synchronously and 3 s asynchronously: synchronous training took 2.67 times as long.")
    assert price == (
        "The death ended the synchronous run 1 s after its first batch; the worker that was left went on from the last "
        "checkpoint 4.5 s later."
    )


def test_a_run_that_did_not_come_through_is_no_win_for_the_other() -> None:
    choice, about, *_ = with_a_death(Ran([], reason="did not come through: no memory"), falling(10, death_seconds=1.0))
    assert choice == "Nothing could be compared."
    assert "nothing can be compared: synchronously, training did not come through: no memory." in about


def test_processes_that_share_cores_are_told() -> None:
    assert shared_cores(2, 1, 4) == []
    assert shared_cores(2, 1, 2) == [
        "2 workers and 1 parameter server are 3 processes on 2 cores: in every run they take computing time from each "
        "other."
    ]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResult:
    ran = {
        "equal devices": {SYNCHRONOUS: falling(10), ASYNCHRONOUS: falling(8, staleness=1.0)},
        "a dying worker": {
            SYNCHRONOUS: falling(20, death_seconds=2.0, resumed_seconds=6.0),
            ASYNCHRONOUS: falling(10, death_seconds=9.0),
        },
    }
    return conclude(tmp_path_factory.mktemp("result"), {0: ran}, "2 cores of a machine", 2)


def test_times_stand_beside_each_other_and_an_early_one_is_marked(result: ExperimentResult) -> None:
    # 91 means of 10 updates each, of which the 72nd lies at four fifths: 1 - (72 + 81) / 200.
    [seed] = result.data["seeds"]
    assert seed["target_loss"] == pytest.approx(1.05 * 0.235)
    assert [row[:3] for row in result.rows] == [
        ["equal devices", "8 s", "6.4 s"],
        ["a dying worker", "16 s", "8 s (before the death)"],
    ]
    assert result.findings[0] == "Sooner at loss 0.25: asynchronous training with equal devices."


def ending_at(loss: float) -> Ran:
    return Ran([Point(1.0, loss, 160)], 160.0)


Row = tuple[float | None, float, float | None, float]
"""Seconds and last loss of the synchronous run, the same of the other."""


def trial_of(*conditions: Row, seed: int = 0, target: float = TARGET) -> Trial:
    """With A, B, ..."""
    names = "ABCD"[: len(conditions)]
    times = {name: {SYNCHRONOUS: row[0], ASYNCHRONOUS: row[2]} for name, row in zip(names, conditions, strict=True)}
    ran = {
        name: {SYNCHRONOUS: ending_at(row[1]), ASYNCHRONOUS: ending_at(row[3])}
        for name, row in zip(names, conditions, strict=True)
    }
    return Trial(seed, target, times, ran)


def headline(*conditions: Row) -> str:
    return findings([trial_of(*conditions)])[0]


def test_the_headline_says_when_each_is_the_better_choice() -> None:
    assert headline((4, 0.1, 2, 0.1), (4, 0.1, 8, 0.1), (4, 0.1, 2, 0.105), (4, 0.1, 4, 0.1)) == (
        "Sooner at loss 0.20: asynchronous training with A and C; synchronous training with B. It makes no difference "
        "with D."
    )


def test_where_single_runs_end_decides_nothing() -> None:
    assert headline((4, 0.1, 2, 0.15)) == "Sooner at loss 0.20: asynchronous training with A."
    assert headline((4, 0.1, 4, 0.15)) == "It makes no difference with A."


def test_several_seeds_judge_only_where_all_agree() -> None:
    """A: asynchronous with all. B: once each. C: even, and once not. D: a loss that one never came to."""
    said = findings(
        [
            trial_of((4, 0.1, 2, 0.1), (4, 0.1, 2, 0.2), (4, 0.1, 4, 0.1), (4, 0.1, 5, 0.2)),
            trial_of((6, 0.1, 2, 0.2), (2, 0.1, 4, 0.2), (4, 0.1, 2, 0.1), (4, 0.1, None, 0.3), seed=1, target=0.25),
            trial_of((5, 0.1, 2, 0.1), (4, 0.1, 2, 0.2), (4, 0.1, 4, 0.1), (4, 0.1, 6, 0.2), seed=2, target=0.22),
        ]
    )
    assert said[0] == (
        "Sooner at loss 0.20 to 0.25 with every one of 3 seeds: asynchronous training with A; synchronous training "
        "with D. Seeds do not agree with B and C."
    )
    assert said[1] == (
        "With A, loss 0.20 to 0.25 took 4 s, 6 s and 5 s synchronously and 2 s, 2 s and 2 s asynchronously with 3 "
        "seeds: synchronous training took 2.50 times as long in the median."
    )
    assert "With D, loss 0.20 to 0.25: 4 s, 4 s and 4 s synchronously and 5 s, never and 6 s asynchronously" in said[4]
    [ends] = [each for each in said if each.startswith("Losses at the end")]
    assert "0.100, 0.100 and 0.100 against 0.200, 0.200 and 0.200 with B (synchronous training ends lower" in ends
    assert "with A (seeds do not agree on the lower)" in ends
    assert said[-1].endswith("and these are 3 runs of each.")


def test_a_run_that_failed_with_one_seed_leaves_the_others_to_compare() -> None:
    failed = trial_of((4, 0.1, 2, 0.1), seed=1)
    failed = replace(failed, ran={"A": {**failed.ran["A"], SYNCHRONOUS: Ran([], reason="did not come through: x")}})
    said = findings([trial_of((4, 0.1, 2, 0.1)), failed])
    assert said[0].endswith("with every seed that was compared: asynchronous training with A (1 of 2 seeds).")
    assert said[1] == "Seed 1: With A, nothing can be compared: synchronously, training did not come through: x."
    assert "took 4 s synchronously and 2 s asynchronously: synchronous training took 2.00 times as long." in said[2]


def test_a_seed_without_a_loss_to_aim_for_is_left_out(tmp_path: Path) -> None:
    whole = {"equal devices": {SYNCHRONOUS: falling(10), ASYNCHRONOUS: falling(8, staleness=1.0)}}
    failed = {"equal devices": {**whole["equal devices"], SYNCHRONOUS: Ran([], reason="did not come through: x")}}
    result = conclude(tmp_path, {0: whole, 1: failed}, "2 cores of a machine", 4)
    assert "Seed 1 is left out: the synchronous run on equal devices did not come through: x." in result.findings
    assert result.failed == 1
    assert [each["seed"] for each in result.data["seeds"]] == [0]
    with pytest.raises(RunFailed, match="on equal devices did not come through"):
        conclude(tmp_path, {0: failed, 1: failed}, "2 cores of a machine", 4)


def test_several_seeds_in_one_table_and_figure(tmp_path: Path) -> None:
    def done(seconds: float, last: float) -> sync_vs_async.Done:
        late = falling(seconds, staleness=1.0)
        never = replace(late, points=[replace(point, loss=max(point.loss, last)) for point in late.points])
        return {"equal devices": {SYNCHRONOUS: falling(10), ASYNCHRONOUS: late},
                "a slow link": {SYNCHRONOUS: falling(30), ASYNCHRONOUS: never}}  # fmt: skip

    result = conclude(tmp_path, {0: done(8, 0.0), 1: done(6, 0.5), 7: done(7, 0.0)}, "2 cores of a machine", 4)
    assert [row[:4] for row in result.rows] == [
        ["equal devices", "8 s", "5.6 s", "160 / 160"],
        ["a slow link", "24 s", "never 1 of 3", "160 / 160"],
    ]
    assert result.rows[1][4].endswith(" to 0.50")
    ends = "0.045, 0.045 and 0.045 against 0.045, 0.045 and 0.045 with equal devices (no difference)"
    assert any(ends in each for each in result.findings)
    assert [each["seed"] for each in result.data["seeds"]] == [0, 1, 7]
    drawn = (tmp_path / "sync-vs-async.svg").read_text()
    for words in ("3 seeds, a line each", "asynchronous: 6.4 s, 4.8 s, 5.6 s", "asynchronous: 6.4 s, never, 5.6 s"):
        assert words in drawn


def test_more_than_all_of_its_throughput_is_no_finding() -> None:
    ran = {
        "equal devices": {SYNCHRONOUS: Ran([], 200.0), ASYNCHRONOUS: Ran([], 200.0)},
        "a straggler": {SYNCHRONOUS: Ran([], 100.0), ASYNCHRONOUS: Ran([], 260.0)},
    }
    times = {name: {SYNCHRONOUS: 4.0, ASYNCHRONOUS: 2.0} for name in ran}
    choice, *rest = findings([Trial(0, TARGET, times, ran)])
    assert choice == "Nothing could be compared. The machine's speed changed between the runs."
    [said] = [each for each in rest if "half speed" in each]
    assert said.startswith("Beside a worker at half speed, synchronous training had 50%")
    assert "asynchronous training 130%, which cannot be" in said


def test_each_keeps_its_own_part_of_its_samples_per_second_beside_a_straggler() -> None:
    ran = {
        "equal devices": {SYNCHRONOUS: Ran([], 200.0), ASYNCHRONOUS: Ran([], 250.0)},
        "a straggler": {SYNCHRONOUS: Ran([], 100.0), ASYNCHRONOUS: Ran([], 200.0)},
    }
    assert (
        "One worker at half speed left synchronous training 50% of its samples per second, and asynchronous training "
        "80%."
    ) in findings([Trial(0, TARGET, {}, ran)])


def test_losses_at_the_end_are_told_too(result: ExperimentResult) -> None:
    # The last ten of a hundred updates: 0.09 down to 0.
    assert (
        "Losses at the end of the runs, synchronous and asynchronous: 0.045 and 0.045 with equal devices, 0.045 and "
        "0.045 with a dying worker. With another seed the other may end lower: from one run of each nothing follows "
        "about where they end."
    ) in result.findings


def test_the_figure_names_the_machine_and_the_deaths(result: ExperimentResult) -> None:
    drawn = (result.files[0].parent / "sync-vs-async.svg").read_text()
    for words in (
        "3 processes on 2 cores of a machine",
        "synchronous: 8.0 s",
        "asynchronous: 6.4 s",
        "worker 1 killed, at 2.0 s and 9.0 s",
        "ended, resumed from its checkpoint",
    ):
        assert words in drawn


class Trained:
    """In place of training: notes what is asked for, and is interrupted, or fails, when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, str]] = []
        self.seeds: list[int] = []
        self.at: dict[int, BaseException] = {}
        monkeypatch.setattr(sync_vs_async, "_ran", self.ran)
        monkeypatch.setattr(sync_vs_async, "obstacle", lambda: None)
        monkeypatch.setattr(sync_vs_async, "draw", lambda *_: [])

    def ran(self, condition: sync_vs_async.Condition, strategy: str, seed: int, steps: int) -> Ran:
        self.asked.append((condition.name, strategy))
        self.seeds.append(seed)
        if error := self.at.get(len(self.asked)):
            raise error
        return falling(10, death_seconds=1.0) if condition.dies else falling(steps / 10)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Trained:
    return Trained(monkeypatch)


ALL = [(condition.name, strategy) for condition in CONDITIONS for strategy in (SYNCHRONOUS, ASYNCHRONOUS)]


def test_an_interrupted_experiment_goes_on_where_it_was(trained: Trained, tmp_path: Path) -> None:
    trained.at[4] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        sync_vs_async.run(tmp_path, True, lambda _: None)
    assert len(list((tmp_path / "runs").iterdir())) == 3
    result = sync_vs_async.run(tmp_path, True, lambda _: None)
    assert trained.asked == [*ALL[:4], *ALL[3:]]
    assert result.data["seeds"][0]["seconds_to_target"]["equal devices"] == {
        SYNCHRONOUS: pytest.approx(9.6),
        ASYNCHRONOUS: pytest.approx(9.6),
    }
    assert json.loads((tmp_path / "sync-vs-async.json").read_text())["failed"] == 0
    sync_vs_async.run(tmp_path, True, lambda _: None)
    assert len(trained.asked) == 9


def test_more_seeds_are_added_to_those_that_ran(trained: Trained, tmp_path: Path) -> None:
    sync_vs_async.run(tmp_path, True, lambda _: None)
    result = sync_vs_async.run(tmp_path, True, lambda _: None, seeds=[0, 5])
    assert trained.seeds == [0] * 8 + [5] * 8
    assert [each["seed"] for each in result.data["seeds"]] == [0, 5]


@pytest.mark.usefixtures("trained")
def test_a_condition_that_cannot_be_rehearsed_here_is_told_in_the_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_vs_async, "obstacle", lambda: "rehearsed hosts need root")
    sync_vs_async.run(tmp_path, True, lambda _: None)
    said = "With a slow link nothing was run, so nothing is known of it: rehearsed hosts need root."
    assert said in (tmp_path / "findings.md").read_text()


def test_a_run_that_did_not_come_through_is_tried_again(trained: Trained, tmp_path: Path) -> None:
    trained.at[3] = RunFailed("rank 0 was killed")
    assert sync_vs_async.run(tmp_path, True, lambda _: None).failed == 1
    assert sync_vs_async.run(tmp_path, True, lambda _: None).failed == 0
    assert trained.asked == [*ALL, ALL[2]]


@pytest.mark.usefixtures("trained")
def test_runs_of_another_length_are_not_mixed(tmp_path: Path) -> None:
    sync_vs_async.run(tmp_path, True, lambda _: None)
    with pytest.raises(UserError, match="measured with other conditions: steps was 120 and is now 600"):
        sync_vs_async.run(tmp_path, False, lambda _: None)


def test_what_is_no_run_is_named(trained: Trained, tmp_path: Path) -> None:
    sync_vs_async.run(tmp_path, True, lambda _: None)
    path = tmp_path / "runs" / "a-straggler-parameter-server-seed-0.json"
    path.write_text("{}")
    with pytest.raises(UserError, match=rf"^{path} does not hold a run; remove it"):
        sync_vs_async.run(tmp_path, True, lambda _: None)
    path.unlink()
    sync_vs_async.run(tmp_path, True, lambda _: None)
    assert trained.asked[8:] == [("a straggler", SYNCHRONOUS)]


def test_an_interrupt_that_leaves_a_checkpoint_still_ends_the_experiment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise RunFailed("interrupted; go on from the last checkpoint") from None

    monkeypatch.setattr(sync_vs_async, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sync_vs_async.run(tmp_path, True, lambda _: None)


STEPS, DIES_AT = 40, 12
tiny = partial(train, device_kind="cpu", batch=4)


def test_a_synchronous_run_is_followed_through_the_death_of_a_worker() -> None:
    def on_two(workload: str, devices: int = 2, **options: Any) -> Any:
        return tiny(workload, strategy=SYNCHRONOUS, devices=devices, steps=STEPS, **options)

    ran = train_through_death("tests.tiny:float32", DIES_AT, on_two, ends_the_run=True)
    assert ran.death_seconds is not None
    assert ran.resumed_seconds is not None
    assert 0 < ran.death_seconds < ran.resumed_seconds < ran.points[-1].seconds
    before = [point for point in ran.points if point.seconds < ran.resumed_seconds]
    # In its twelfth step the other worker may have been quicker than the one that died.
    assert len(before) - 2 * (DIES_AT - 1) in (0, 1)
    assert {point.samples for point in before} == {2}
    assert [point.samples for point in ran.points[len(before) :]] == [4] * (STEPS - 10)
    # Ten steps are in the checkpoint; what was done of the next two counts once.
    assert ran.samples_per_second == pytest.approx(4 * STEPS / ran.points[-1].seconds)


def test_an_asynchronous_run_goes_on_without_the_worker_that_died() -> None:
    on_two = partial(tiny, strategy=ASYNCHRONOUS, devices=2, steps=1000)  # that a late worker finds work, too
    ran = train_through_death("tests.tiny:float32", 3, on_two, ends_the_run=False)
    assert len(ran.points) == 2 * 1000 - 1  # what it had in hand is lost
    assert ran.death_seconds is not None
    assert ran.resumed_seconds is None
    assert ran.death_seconds < ran.points[-1].seconds
    assert ran.samples_per_second == pytest.approx(2 * len(ran.points) / ran.points[-1].seconds)


def test_a_worker_that_lives_to_the_end_is_told() -> None:
    lives = replace(train("tests.tiny:float32", batch=4, steps=2), staleness=None)
    with pytest.raises(RunFailed, match="the worker did not die"):
        train_through_death("tests.tiny:float32", DIES_AT, lambda *_, **__: lives, ends_the_run=True)
