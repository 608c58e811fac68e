"""Synchronous against asynchronous training: the table, the seeds and the conditions of the experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.errors import RunFailed
from scalewise.experiments import sync_vs_async
from scalewise.experiments.sync_vs_async import ASYNCHRONOUS, SYNCHRONOUS, conclude
from scalewise.experiments.sync_vs_async_runs import Ran
from tests.experiments.conftest import falling, one_dies, three_seeds

MACHINE = "2 cores of a machine"


def test_times_stand_beside_each_other_and_an_early_one_is_marked(tmp_path: Path) -> None:
    result = conclude(tmp_path, {0: one_dies()}, MACHINE, 2)
    # 91 means of 10 updates each, of which the 72nd lies at four fifths: 1 - (72 + 81) / 200.
    [seed] = result.data["seeds"]
    assert seed["target_loss"] == pytest.approx(1.05 * 0.235)
    assert [row[:3] for row in result.rows] == [
        ["equal devices", "8 s", "6.4 s"],
        ["a dying worker", "16 s", "8 s (before the death)"],
    ]
    assert result.findings[0] == "Sooner at loss 0.25: asynchronous training with equal devices."


def test_losses_at_the_end_are_told_too(tmp_path: Path) -> None:
    # The last ten of a hundred updates: 0.09 down to 0.
    assert (
        "Losses at the end of the runs, synchronous and asynchronous: 0.045 and 0.045 with equal devices, 0.045 and "
        "0.045 with a dying worker. With another seed the other may end lower: from one run of each nothing follows "
        "about where they end."
    ) in conclude(tmp_path, {0: one_dies()}, MACHINE, 2).findings


def test_a_seed_without_a_loss_to_aim_for_is_left_out(tmp_path: Path) -> None:
    whole = {"equal devices": {SYNCHRONOUS: falling(10), ASYNCHRONOUS: falling(8, staleness=1.0)}}
    failed = {"equal devices": {**whole["equal devices"], SYNCHRONOUS: Ran([], reason="did not come through: x")}}
    result = conclude(tmp_path, {0: whole, 1: failed}, MACHINE, 4)
    assert "Seed 1 is left out: the synchronous run on equal devices did not come through: x." in result.findings
    assert result.failed == 1
    assert [each["seed"] for each in result.data["seeds"]] == [0]
    with pytest.raises(RunFailed, match="on equal devices did not come through"):
        conclude(tmp_path, {0: failed, 1: failed}, MACHINE, 4)


def test_several_seeds_in_one_table(tmp_path: Path) -> None:
    result = conclude(tmp_path, three_seeds(), MACHINE, 4)
    assert [row[:4] for row in result.rows] == [
        ["equal devices", "8 s", "5.6 s", "160 / 160"],
        ["a slow link", "24 s", "never 1 of 3", "160 / 160"],
    ]
    assert result.rows[1][4].endswith(" to 0.50")
    ends = "0.045, 0.045 and 0.045 against 0.045, 0.045 and 0.045 with equal devices (no difference)"
    assert any(ends in each for each in result.findings)
    assert [each["seed"] for each in result.data["seeds"]] == [0, 1, 7]


@pytest.mark.usefixtures("trained")
def test_a_condition_that_cannot_be_rehearsed_here_is_told_in_the_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_vs_async, "obstacle", lambda: "rehearsed hosts need root")
    sync_vs_async.run(tmp_path, True, lambda _: None)
    said = "With a slow link nothing was run, so nothing is known of it: rehearsed hosts need root."
    assert said in (tmp_path / "findings.md").read_text()


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
