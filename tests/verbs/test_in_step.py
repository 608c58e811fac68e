"""Devices timed together, meeting in every step."""

from __future__ import annotations

from pathlib import Path

import pytest

import scalewise
from scalewise.errors import UserError
from scalewise.results.profile import Profile, StepCost
from scalewise.verbs import in_step
from scalewise.verbs.in_step import Met, with_others

TINY = "tests.tiny:float32"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("scalewise.verbs.profiler.SECONDS_PER_BATCH", 0.02)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_every_batch_is_timed_on_one_device_and_on_so_many_at_once(tmp_path: Path) -> None:
    alone = scalewise.profile(TINY, batch=[2, 8], device_kind="cpu")
    heard: list[int] = []
    found = with_others(alone, TINY, [2], on_count=heard.append)
    assert [(each.devices, [step.batch for step in each.steps]) for each in found.document.in_step] == [
        (1, [2, 8]),
        (2, [2, 8]),
    ]
    assert heard == [1, 2]
    for step in (step for each in found.document.in_step for step in each.steps):
        assert step.step_seconds == pytest.approx(step.seconds)
        assert min(step.forward, step.backward, step.update) > 0
    found.write(tmp_path / "profile.json")
    assert Profile.read(tmp_path / "profile.json").document == found.document
    assert found.document.steps == alone.document.steps


def test_a_step_lasts_from_where_all_met_to_the_last_arrival() -> None:
    """The first meeting ends at 1.2 and the second arrival at 3.0, the second meeting at 3.1 and the third at 5.3."""
    phases = {"load": 0.1, "forward": 0.3, "loss": 0.1, "backward": 0.4, "idle": 0.7, "update": 0.1}
    quick = Met([0.9, 2.5, 5.3], [1.2, 3.0, 5.5], phases)
    slow = Met([1.0, 3.0, 5.0], [1.1, 3.1, 5.5], {})
    known = StepCost(batch=4, forward=1, backward=1, update=1, load=1, ready=(0.5, 1.0))
    cost = in_step._cost(known, [quick, slow])
    assert cost.step_seconds == pytest.approx(2.0)  # of 1.8 and 2.2
    assert (cost.load, cost.forward, cost.backward, cost.update) == pytest.approx((0.2, 0.8, 0.8, 0.2))
    assert (cost.batch, cost.ready) == (4, (0.5, 1.0))


@pytest.mark.parametrize(("counts", "said"), [([], "empty"), ([1], "1"), ([1, 4], "1,4")])
def test_one_device_has_nobody_beside_it(counts: list[int], said: str) -> None:
    alone = scalewise.profile(TINY, batch=[2], device_kind="cpu")
    with pytest.raises(UserError, match=f"--beside is {said}; it must be 2 or more"):
        with_others(alone, TINY, counts)
