"""Findings of the comparison of synchronous and asynchronous training."""

from __future__ import annotations

from dataclasses import replace

from scalewise.studies.sync_vs_async import ASYNCHRONOUS, SYNCHRONOUS
from scalewise.studies.sync_vs_async_findings import SeedResult, findings, shared_cores
from scalewise.studies.sync_vs_async_runs import LossPoint, TrainingRun
from tests.studies.conftest import falling

TARGET = 0.2


def with_a_death(synchronous: TrainingRun, asynchronous: TrainingRun, reached: float = 3.0) -> list[str]:
    times = {"a dying worker": {SYNCHRONOUS: 8.0, ASYNCHRONOUS: reached}}
    runs = {"a dying worker": {SYNCHRONOUS: synchronous, ASYNCHRONOUS: asynchronous}}
    return findings([SeedResult(0, TARGET, times, runs)])


def test_a_loss_reached_before_the_death_is_not_compared() -> None:
    choice, about, *_ = with_a_death(falling(10, death_seconds=4.0), falling(10, death_seconds=3.9))
    assert choice == "Nothing could be compared."
    assert about == (
        "With a dying worker, loss 0.20 was reached before the worker died: asynchronously after 3 s (the worker died "
        "after 3.9 s). These times do not show the effect of a death."
    )


def test_a_death_before_the_loss_is_compared_with_its_interruption() -> None:
    choice, about, interruption, *_ = with_a_death(
        falling(10, death_seconds=1.0, resumed_seconds=5.5), falling(10, death_seconds=0.9)
    )
    assert choice == "Faster to loss 0.20: asynchronous training with a dying worker."
    assert about.endswith("8 s synchronously and 3 s asynchronously: synchronous training took 2.67 times as long.")
    assert interruption == (
        "The worker's death ended the synchronous run 1 s after its first batch; the remaining worker resumed from the "
        "last checkpoint 4.5 s later."
    )


def test_a_failed_run_is_not_compared() -> None:
    choice, about, *_ = with_a_death(TrainingRun([], reason="failed: no memory"), falling(10, death_seconds=1.0))
    assert choice == "Nothing could be compared."
    assert about == "With a dying worker, the runs cannot be compared: the synchronous run failed: no memory."


def test_processes_that_share_cores_are_reported() -> None:
    assert shared_cores(2, 1, 4) == []
    assert shared_cores(2, 1, 2) == [
        "2 workers and 1 parameter server are 3 processes on 2 cores, so they slow each other down in every run."
    ]


def ending_at(loss: float) -> TrainingRun:
    return TrainingRun([LossPoint(1.0, loss, 160)], 160.0)


Row = tuple[float | None, float, float | None, float]
"""Seconds to the target and final loss of the synchronous run, then of the asynchronous run."""


def result_of(*conditions: Row, seed: int = 0, target: float = TARGET) -> SeedResult:
    """Return the result of one seed; the conditions are named A, B, ..."""
    names = "ABCD"[: len(conditions)]
    times = {name: {SYNCHRONOUS: row[0], ASYNCHRONOUS: row[2]} for name, row in zip(names, conditions, strict=True)}
    runs = {
        name: {SYNCHRONOUS: ending_at(row[1]), ASYNCHRONOUS: ending_at(row[3])}
        for name, row in zip(names, conditions, strict=True)
    }
    return SeedResult(seed, target, times, runs)


def headline(*conditions: Row) -> str:
    return findings([result_of(*conditions)])[0]


def test_the_headline_names_the_faster_strategy_by_condition() -> None:
    assert headline((4, 0.1, 2, 0.1), (4, 0.1, 8, 0.1), (4, 0.1, 2, 0.105), (4, 0.1, 4, 0.1)) == (
        "Faster to loss 0.20: asynchronous training with A and C; synchronous training with B. No difference with D."
    )


def test_the_final_loss_of_single_runs_does_not_count() -> None:
    assert headline((4, 0.1, 2, 0.15)) == "Faster to loss 0.20: asynchronous training with A."
    assert headline((4, 0.1, 4, 0.15)) == "No difference with A."


def test_a_strategy_is_faster_only_if_all_seeds_agree() -> None:
    """A: asynchronous with all seeds. B: mixed. C: equal except once. D: one asynchronous run misses the target."""
    sentences = findings(
        [
            result_of((4, 0.1, 2, 0.1), (4, 0.1, 2, 0.2), (4, 0.1, 4, 0.1), (4, 0.1, 5, 0.2)),
            result_of((6, 0.1, 2, 0.2), (2, 0.1, 4, 0.2), (4, 0.1, 2, 0.1), (4, 0.1, None, 0.3), seed=1, target=0.25),
            result_of((5, 0.1, 2, 0.1), (4, 0.1, 2, 0.2), (4, 0.1, 4, 0.1), (4, 0.1, 6, 0.2), seed=2, target=0.22),
        ]
    )
    assert sentences[0] == (
        "Faster to loss 0.20 to 0.25 with all 3 seeds: asynchronous training with A; synchronous training with D. The "
        "seeds disagree with B and C."
    )
    assert sentences[1] == (
        "With A, loss 0.20 to 0.25 took 4 s, 6 s and 5 s synchronously and 2 s, 2 s and 2 s asynchronously with 3 "
        "seeds: synchronous training took 2.50 times as long (median)."
    )
    times = "4 s, 4 s and 4 s synchronously and 5 s, never and 6 s asynchronously"
    assert f"With D, loss 0.20 to 0.25: {times}" in sentences[4]
    [losses] = [sentence for sentence in sentences if sentence.startswith("Final losses")]
    assert "0.100, 0.100 and 0.100 against 0.200, 0.200 and 0.200 with B (synchronous training ends lower" in losses
    assert "with A (the seeds disagree on which is lower)" in losses
    assert sentences[-1].endswith("from 3 runs of each.")


def test_a_run_that_failed_with_one_seed_leaves_the_others_to_compare() -> None:
    failed = result_of((4, 0.1, 2, 0.1), seed=1)
    failed = replace(failed, runs={"A": {**failed.runs["A"], SYNCHRONOUS: TrainingRun([], reason="failed: x")}})
    sentences = findings([result_of((4, 0.1, 2, 0.1)), failed])
    assert sentences[0].endswith("that could be compared: asynchronous training with A (1 of 2 seeds).")
    assert sentences[1] == "Seed 1: With A, the runs cannot be compared: the synchronous run failed: x."
    assert (
        "took 4 s synchronously and 2 s asynchronously: synchronous training took 2.00 times as long." in sentences[2]
    )


def test_a_throughput_above_100_percent_is_not_compared() -> None:
    runs = {
        "equal devices": {SYNCHRONOUS: TrainingRun([], 200.0), ASYNCHRONOUS: TrainingRun([], 200.0)},
        "a straggler": {SYNCHRONOUS: TrainingRun([], 100.0), ASYNCHRONOUS: TrainingRun([], 260.0)},
    }
    times = {name: {SYNCHRONOUS: 4.0, ASYNCHRONOUS: 2.0} for name in runs}
    choice, *rest = findings([SeedResult(0, TARGET, times, runs)])
    assert choice == "Nothing could be compared. The machine's speed changed between the runs."
    [throughput] = [sentence for sentence in rest if "half speed" in sentence]
    assert "kept 50% of its throughput and asynchronous training 130%, which is impossible" in throughput


def test_throughput_kept_with_a_straggler() -> None:
    runs = {
        "equal devices": {SYNCHRONOUS: TrainingRun([], 200.0), ASYNCHRONOUS: TrainingRun([], 250.0)},
        "a straggler": {SYNCHRONOUS: TrainingRun([], 100.0), ASYNCHRONOUS: TrainingRun([], 200.0)},
    }
    assert (
        "With one worker at half speed, synchronous training kept 50% of its throughput and asynchronous training 80%."
    ) in findings([SeedResult(0, TARGET, {}, runs)])
