"""Runs on the disk: none is done twice, none of other conditions is mixed in, and what is no run is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalewise.errors import RunFailed, UserError
from scalewise.experiments import sync_vs_async
from scalewise.experiments.sync_vs_async import ASYNCHRONOUS, CONDITIONS, SYNCHRONOUS
from tests.experiments.conftest import Trained

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
