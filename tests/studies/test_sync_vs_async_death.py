"""Runs in which a worker is killed, with real processes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from scalewise.core.errors import RunFailed
from scalewise.studies.sync_vs_async import ASYNCHRONOUS, SYNCHRONOUS
from scalewise.studies.sync_vs_async_runs import train_through_death
from scalewise.training.train import train

pytestmark = pytest.mark.slow

STEPS, DIES_AT = 40, 12
tiny = partial(train, device_kind="cpu", batch=4)


def test_a_synchronous_run_is_resumed_after_the_death_of_a_worker() -> None:
    def on_two(workload: str, devices: int = 2, **options: Any) -> Any:
        return tiny(workload, strategy=SYNCHRONOUS, devices=devices, steps=STEPS, **options)

    run = train_through_death("tests.tiny:float32", DIES_AT, on_two, ends_the_run=True)
    assert run.death_seconds is not None
    assert run.resumed_seconds is not None
    assert 0 < run.death_seconds < run.resumed_seconds < run.points[-1].seconds
    before = [point for point in run.points if point.seconds < run.resumed_seconds]
    # In the twelfth step the other worker may have been faster than the one that died.
    assert len(before) - 2 * (DIES_AT - 1) in (0, 1)
    assert {point.samples for point in before} == {2}
    assert [point.samples for point in run.points[len(before) :]] == [4] * (STEPS - 10)
    # Ten steps are in the checkpoint; the next two are repeated and count once.
    assert run.samples_per_second == pytest.approx(4 * STEPS / run.points[-1].seconds)


def test_an_asynchronous_run_continues_without_the_dead_worker() -> None:
    on_two = partial(tiny, strategy=ASYNCHRONOUS, devices=2, steps=1000)  # enough steps for a worker that starts late
    run = train_through_death("tests.tiny:float32", 3, on_two, ends_the_run=False)
    assert len(run.points) == 2 * 1000 - 1  # its last batch is lost
    assert run.death_seconds is not None
    assert run.resumed_seconds is None
    assert run.death_seconds < run.points[-1].seconds
    assert run.samples_per_second == pytest.approx(2 * len(run.points) / run.points[-1].seconds)


def test_a_worker_that_does_not_die_is_an_error() -> None:
    lives = replace(train("tests.tiny:float32", batch=4, steps=2), staleness=None)
    with pytest.raises(RunFailed, match="the worker did not die"):
        train_through_death("tests.tiny:float32", DIES_AT, lambda *_, **__: lives, ends_the_run=True)
