"""Devices timed together, with a barrier in every step."""

from __future__ import annotations

from pathlib import Path

import pytest

import scalewise
from scalewise.core.errors import UserError
from scalewise.formats.profile import Profile, StepCost
from scalewise.probe import sibling_profiler
from scalewise.probe.sibling_profiler import BarrierTimes, with_others

TINY = "tests.tiny:float32"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("scalewise.probe.profile.SECONDS_PER_BATCH", 0.02)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_every_batch_is_timed_on_one_device_and_on_several_at_once(tmp_path: Path) -> None:
    alone = scalewise.profile(TINY, batch=[2, 8], device_kind="cpu")
    counts: list[int] = []
    profile = with_others(alone, TINY, [2], on_count=counts.append)
    assert [(entry.devices, [step.batch for step in entry.steps]) for entry in profile.document.in_step] == [
        (1, [2, 8]),
        (2, [2, 8]),
    ]
    assert counts == [1, 2]
    for step in (step for entry in profile.document.in_step for step in entry.steps):
        assert step.step_seconds == pytest.approx(step.seconds)
        assert min(step.forward, step.backward, step.update) > 0
    profile.write(tmp_path / "profile.json")
    assert Profile.read(tmp_path / "profile.json").document == profile.document
    assert profile.document.steps == alone.document.steps


def test_a_step_lasts_from_the_end_of_a_barrier_to_the_last_arrival_at_the_next() -> None:
    """The barriers end at 1.2 and 3.1; the last arrivals at the barriers after them are at 3.0 and 5.3."""
    phases = {"load": 0.1, "forward": 0.3, "loss": 0.1, "backward": 0.4, "idle": 0.7, "update": 0.1}
    fast = BarrierTimes([0.9, 2.5, 5.3], [1.2, 3.0, 5.5], phases)
    slow = BarrierTimes([1.0, 3.0, 5.0], [1.1, 3.1, 5.5], {})
    known = StepCost(batch=4, forward=1, backward=1, update=1, load=1, ready=(0.5, 1.0))
    cost = sibling_profiler._cost(known, [fast, slow])
    assert cost.step_seconds == pytest.approx(2.0)  # the median of 1.8 and 2.2
    assert (cost.load, cost.forward, cost.backward, cost.update) == pytest.approx((0.2, 0.8, 0.8, 0.2))
    assert (cost.batch, cost.ready) == (4, (0.5, 1.0))


def test_phases_of_zero_seconds_are_accepted() -> None:
    times = BarrierTimes([0.0, 0.0], [0.0, 0.0], dict.fromkeys(["load", "forward", "loss", "backward", "update"], 0.0))
    known = StepCost(batch=4, forward=1, backward=1, update=1, load=1)
    cost = sibling_profiler._cost(known, [times, times])
    assert (cost.step_seconds, cost.seconds) == (0.0, 0.0)


@pytest.mark.parametrize(("counts", "given"), [([], "empty"), ([1], "1"), ([1, 4], "1,4")])
def test_fewer_than_two_devices_are_refused(counts: list[int], given: str) -> None:
    alone = scalewise.profile(TINY, batch=[2], device_kind="cpu")
    with pytest.raises(UserError, match=f"--beside is {given}; every device count must be 2 or more"):
        with_others(alone, TINY, counts)
