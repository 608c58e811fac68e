"""Synchronous against asynchronous training in words: what counts as a comparison, and what follows from it."""

from __future__ import annotations

from dataclasses import replace

from scalewise.experiments.curves import Point
from scalewise.experiments.sync_vs_async import ASYNCHRONOUS, SYNCHRONOUS
from scalewise.experiments.sync_vs_async_runs import Ran
from scalewise.experiments.sync_vs_async_words import Trial, findings, shared_cores
from tests.experiments.conftest import falling

TARGET = 0.2


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
