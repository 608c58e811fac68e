"""Restarts after lost ranks, versions of checkpoints, and the automatic interval between them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from scalewise.core.errors import Failure, Kind, RankFailed, RunFailed
from scalewise.core.training_options import Settings, TrainingOptions
from scalewise.launch.placement import Placement
from scalewise.strategies.registry import strategy_of
from scalewise.training.checkpoint import Progress, is_intact, save_checkpoint, saved_progress, usable_version
from scalewise.training.recovery import SHARE_FOR_SAVING, Recovery, next_save
from scalewise.training.results import Report, Request
from tests.command import Run, finish, fork
from tests.training.test_resume import content, steps_in

PROGRESS = Progress("tiny", 16, 4, "sgd", 0.1, 0, 1, "fp32", 0)


def save(path: Path, steps_done: int, keep: int = 1) -> None:
    model = nn.Linear(2, 1)
    progress = Progress(**{**vars(PROGRESS), "steps_done": steps_done})
    save_checkpoint(path, model, torch.optim.SGD(model.parameters(), 0.1), progress, keep=keep)


def step_of(path: Path) -> int:
    progress = saved_progress(path)
    assert progress is not None
    return progress.steps_done


def test_the_last_versions_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "c"
    for step in range(1, 6):
        save(path, step, keep=3)
    assert {entry.name: step_of(entry) for entry in tmp_path.iterdir()} == {"c": 5, "c.1": 4, "c.2": 3}


def test_a_damaged_checkpoint_is_replaced_by_the_version_before(tmp_path: Path) -> None:
    path = tmp_path / "c"
    for step in range(1, 4):
        save(path, step, keep=3)
    for damaged in (path, tmp_path / "c.1"):
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    assert not is_intact(path)
    usable_version(path, keep=3)
    assert (is_intact(path), step_of(path)) == (True, 1)


@pytest.mark.parametrize(("step_seconds", "save_seconds"), [(1e-4, 0.01), (0.1, 0.01), (1.0, 30.0)])
def test_the_automatic_interval_limits_the_share_of_saving(step_seconds: float, save_seconds: float) -> None:
    done, elapsed, spent, saves, due = 0, 0.0, 0.0, 0, 10
    while saves < 20:
        elapsed, done = elapsed + (due - done) * step_seconds * (3 if done < 100 else 1), due  # first steps are slow
        due = next_save(done, done, elapsed, spent, save_seconds)
        if due > done:
            continue
        elapsed, spent, saves, due = elapsed + save_seconds, spent + save_seconds, saves + 1, done + 1
        # Also if the run ends now with another checkpoint.
        assert (spent + save_seconds) / (elapsed + save_seconds) <= SHARE_FOR_SAVING * 1.01
    assert spent / elapsed >= SHARE_FOR_SAVING / 2  # and it does save


def failed(kind: Kind, cause: str = "was killed (signal 9)") -> RankFailed:
    return RankFailed(Failure(1, kind, cause, "rank 1"))


class Attempts:
    """Attempts that save a checkpoint and then fail, each as the list says; a step without an error succeeds."""

    def __init__(self, path: Path, *ends: tuple[int, RankFailed | None]) -> None:
        self.path, self.ends = path, list(ends)
        self.requests: list[tuple[bool, int]] = []

    def __call__(self, request: Request, placement: Placement, on_report: Callable[[Report], None]) -> str:
        self.requests.append((request.settings.resume, placement.devices))
        step, error = self.ends.pop(0)
        if step:
            on_report(Report(step + 3, 100, 0))
            save(self.path, step)
        if error:
            raise error
        return "done"


def recovered(attempts: Attempts, lines: list[str] | None = None, **options: Any) -> Recovery[str]:
    training_options = TrainingOptions(**{"max_restarts": 3, "devices": 3, "checkpoint": attempts.path, **options})
    recovery = Recovery(training_options, attempts, (lines if lines is not None else []).append)
    settings = Settings(4, None, 100, checkpoint=attempts.path)
    assert recovery.run(Request("tiny", strategy_of("mirrored"), settings), Placement(3, "cpu"), None) == "done"
    return recovery


def test_a_run_continues_from_its_last_checkpoint(tmp_path: Path) -> None:
    attempts, lines = Attempts(tmp_path / "c", (20, failed("died")), (40, failed("hang")), (0, None)), list[str]()
    recovery = recovered(attempts, lines)
    assert attempts.requests == [(False, 3), (True, 3), (True, 3)]
    assert [(restart.from_step, restart.repeated_steps) for restart in recovery.restarts] == [(20, 3), (40, 3)]
    assert recovery.restarts[0].seconds_lost > 0
    assert lines[0] == "rank 1 was killed (signal 9); restart 1 of 3 from step 20 on 3 devices"


def test_a_run_that_failed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save(path, 77)  # of another run, with --overwrite
    attempts = Attempts(path, (0, failed("lost")), (0, None))
    assert recovered(attempts).restarts[0].from_step == 0
    assert attempts.requests == [(False, 3), (False, 3)]


def test_restarts_without_progress_use_fewer_devices(tmp_path: Path) -> None:
    ends = [(20, failed("died")), (0, failed("died")), (0, failed("died")), (0, None)]
    attempts = Attempts(tmp_path / "c", *ends)
    assert [restart.devices for restart in recovered(attempts, min_devices=2).restarts] == [3, 2, 2]
    assert [devices for _, devices in attempts.requests] == [3, 3, 2, 2]


@pytest.mark.parametrize("kind", ["error", "oom", "user"])
def test_failures_that_would_come_back_are_not_retried(kind: Kind, tmp_path: Path) -> None:
    attempts = Attempts(tmp_path / "c", (20, failed(kind, "raised")))
    with pytest.raises(RankFailed, match="raised"):
        recovered(attempts)


def test_the_last_failure_names_its_cause_and_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with pytest.raises(RunFailed) as error:
        recovered(Attempts(path, (20, failed("died")), (30, failed("died"))), max_restarts=1)
    assert str(error.value) == (
        f"rank 1 was killed (signal 9); the run was restarted 1 time; continue with --checkpoint {path} --resume"
    )


@pytest.mark.slow
def test_a_killed_rank_changes_nothing_in_the_result(tmp_path: Path, scalewise: Run) -> None:
    saved, whole = tmp_path / "c.safetensors", tmp_path / "whole.safetensors"
    line = ["train", "tests.training.models:dropout", "--device-kind", "cpu", "--batch", 4, "--samples", 40]
    line += ["--strategy", "mirrored", "--devices", 2, "--steps", 600]
    process = fork(*line, "--checkpoint", saved, "--max-restarts", 1, "--json")
    while not saved.exists():
        assert process.poll() is None, finish(process)
    [rank] = [child for child in psutil.Process(process.pid).children(recursive=True) if child.name() == "sw rank 1"]
    os.kill(rank.pid, signal.SIGKILL)
    output = finish(process)
    assert output.code == 0, output
    document = json.loads(output.stdout)
    [restart] = document["restarts"]
    assert restart["cause"] == "rank 1 was killed (signal 9)"
    assert 0 < restart["from_step"] < 600
    assert restart["seconds_lost"] > 0
    assert document["checkpoints"]["count"] > 0
    assert scalewise(*line, "--checkpoint", whole).code == 0
    assert steps_in(saved) == 600
    assert content(saved) == content(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.safetensors", "whole.safetensors"]
