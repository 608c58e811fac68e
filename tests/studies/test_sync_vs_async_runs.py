"""Saved runs: they are not repeated, not mixed with runs of other conditions, and invalid files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalewise.core.errors import RunFailed, UserError
from scalewise.studies import sync_vs_async
from scalewise.studies.sync_vs_async import ASYNCHRONOUS, CONDITIONS, SYNCHRONOUS
from tests.studies.conftest import TrainingStub

ALL = [(condition.name, strategy) for condition in CONDITIONS for strategy in (SYNCHRONOUS, ASYNCHRONOUS)]


def test_an_interrupted_experiment_continues_with_the_next_run(trained: TrainingStub, tmp_path: Path) -> None:
    trained.errors[4] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        sync_vs_async.run(tmp_path, True, lambda _: None, seeds=[0])
    assert len(list((tmp_path / "runs").iterdir())) == 3
    result = sync_vs_async.run(tmp_path, True, lambda _: None, seeds=[0])
    assert trained.calls == [*ALL[:4], *ALL[3:]]
    assert result.data["seeds"][0]["seconds_to_target"]["equal devices"] == {
        SYNCHRONOUS: pytest.approx(9.6),
        ASYNCHRONOUS: pytest.approx(9.6),
    }
    assert json.loads((tmp_path / "sync-vs-async.json").read_text())["failed"] == 0
    sync_vs_async.run(tmp_path, True, lambda _: None, seeds=[0])
    assert len(trained.calls) == 9


def test_more_seeds_are_added_to_saved_runs(trained: TrainingStub, tmp_path: Path) -> None:
    sync_vs_async.run(tmp_path, True, lambda _: None, seeds=[0])
    result = sync_vs_async.run(tmp_path, True, lambda _: None, seeds=[0, 5])
    assert trained.seeds == [0] * 8 + [5] * 8
    assert [seed["seed"] for seed in result.data["seeds"]] == [0, 5]


def test_a_failed_run_is_repeated(trained: TrainingStub, tmp_path: Path) -> None:
    trained.errors[3] = RunFailed("rank 0 was killed")
    assert sync_vs_async.run(tmp_path, True, lambda _: None, seeds=[0]).failed == 1
    assert sync_vs_async.run(tmp_path, True, lambda _: None, seeds=[0]).failed == 0
    assert trained.calls == [*ALL, ALL[2]]


@pytest.mark.usefixtures("trained")
def test_runs_of_another_length_are_not_mixed(tmp_path: Path) -> None:
    sync_vs_async.run(tmp_path, True, lambda _: None, seeds=[0])
    with pytest.raises(UserError, match="with different conditions: steps was 120 and is now 600"):
        sync_vs_async.run(tmp_path, False, lambda _: None)


def test_an_invalid_file_is_refused(trained: TrainingStub, tmp_path: Path) -> None:
    sync_vs_async.run(tmp_path, True, lambda _: None, seeds=[0])
    path = tmp_path / "runs" / "a-straggler-parameter-server-seed-0.json"
    path.write_text("{}")
    with pytest.raises(UserError, match=rf"^{path} does not contain a run; delete it"):
        sync_vs_async.run(tmp_path, True, lambda _: None, seeds=[0])
    path.unlink()
    sync_vs_async.run(tmp_path, True, lambda _: None, seeds=[0])
    assert trained.calls[8:] == [("a straggler", SYNCHRONOUS)]


def test_several_seeds_are_run_by_default(trained: TrainingStub, tmp_path: Path) -> None:
    result = sync_vs_async.run(tmp_path, True, lambda _: None)
    assert sorted(set(trained.seeds)) == [0, 1, 2]
    assert [seed["seed"] for seed in result.data["seeds"]] == [0, 1, 2]
