"""Table, seeds and conditions of the comparison of synchronous and asynchronous training."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.core.errors import Interrupted, RunFailed
from scalewise.studies import sync_vs_async
from scalewise.studies.sync_vs_async import ASYNCHRONOUS, SYNCHRONOUS, conclude
from scalewise.studies.sync_vs_async_runs import TrainingRun
from tests.studies.conftest import falling, one_dies, three_seeds

MACHINE = "2 cores of a machine"


def test_the_table_marks_times_before_the_death(tmp_path: Path) -> None:
    result = conclude(tmp_path, {0: one_dies()}, MACHINE, 2)
    # The target is the 72nd of 91 means of 10 updates each, at 80%: 1 - (72 + 81) / 200.
    [seed] = result.data["seeds"]
    assert seed["target_loss"] == pytest.approx(1.05 * 0.235)
    assert [row[:3] for row in result.rows] == [
        ["equal devices", "8 s", "6.4 s"],
        ["a dying worker", "16 s", "8 s (before the death)"],
    ]
    assert result.findings[0] == "Faster to loss 0.25: asynchronous training with equal devices."


def test_final_losses_are_reported(tmp_path: Path) -> None:
    # The last ten of a hundred updates: 0.09 down to 0.
    assert (
        "Final losses, synchronous and asynchronous: 0.045 and 0.045 with equal devices, 0.045 and 0.045 with a dying "
        "worker. One run of each does not show which strategy ends lower."
    ) in conclude(tmp_path, {0: one_dies()}, MACHINE, 2).findings


def test_a_seed_whose_reference_run_failed_is_left_out(tmp_path: Path) -> None:
    whole = {"equal devices": {SYNCHRONOUS: falling(10), ASYNCHRONOUS: falling(8, staleness=1.0)}}
    failed = {"equal devices": {**whole["equal devices"], SYNCHRONOUS: TrainingRun([], reason="failed: x")}}
    result = conclude(tmp_path, {0: whole, 1: failed}, MACHINE, 4)
    assert "Seed 1 is left out: the synchronous run on equal devices failed: x." in result.findings
    assert result.failed == 1
    assert [seed["seed"] for seed in result.data["seeds"]] == [0]
    with pytest.raises(RunFailed, match="on equal devices failed"):
        conclude(tmp_path, {0: failed, 1: failed}, MACHINE, 4)


def test_several_seeds_in_one_table(tmp_path: Path) -> None:
    result = conclude(tmp_path, three_seeds(), MACHINE, 4)
    assert [row[:4] for row in result.rows] == [
        ["equal devices", "8 s", "5.6 s", "160 / 160"],
        ["a slow link", "24 s", "never 1 of 3", "160 / 160"],
    ]
    assert result.rows[1][4].endswith(" to 0.50")
    ends = "0.045, 0.045 and 0.045 against 0.045, 0.045 and 0.045 with equal devices (no difference)"
    assert any(ends in finding for finding in result.findings)
    assert [seed["seed"] for seed in result.data["seeds"]] == [0, 1, 7]


@pytest.mark.usefixtures("trained")
def test_a_condition_that_cannot_be_emulated_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_vs_async, "obstacle", lambda: "emulated hosts need root")
    sync_vs_async.run(tmp_path, True, lambda _: None, seeds=[0])
    assert "With a slow link nothing was run: emulated hosts need root." in (tmp_path / "findings.md").read_text()


def test_an_interrupt_ends_the_experiment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise Interrupted("interrupted; continue from the last checkpoint")

    monkeypatch.setattr(sync_vs_async, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sync_vs_async.run(tmp_path, True, lambda _: None, seeds=[0])
