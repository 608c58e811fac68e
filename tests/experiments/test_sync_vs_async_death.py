"""A run on whose way a worker is killed, with real processes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from scalewise.errors import RunFailed
from scalewise.experiments.sync_vs_async import ASYNCHRONOUS, SYNCHRONOUS
from scalewise.experiments.sync_vs_async_death import train_through_death
from scalewise.verbs.train import train

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
