"""Synthetic runs of synchronous and asynchronous training, and a stand-in for training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scalewise.studies import sync_vs_async
from scalewise.studies.sync_vs_async import ASYNCHRONOUS, SYNCHRONOUS, RunsByCondition
from scalewise.studies.sync_vs_async_runs import LossPoint, TrainingRun


def falling(seconds: float, **more: Any) -> TrainingRun:
    """Return a run whose loss falls from 1 to 0 in the given time and 100 updates."""
    return TrainingRun([LossPoint(seconds * part / 100, 1 - part / 100, 16) for part in range(1, 101)], 160.0, **more)


def one_dies() -> RunsByCondition:
    """Return runs of which the asynchronous one reaches the target loss before the worker dies."""
    return {
        "equal devices": {SYNCHRONOUS: falling(10), ASYNCHRONOUS: falling(8, staleness=1.0)},
        "a dying worker": {
            SYNCHRONOUS: falling(20, death_seconds=2.0, resumed_seconds=6.0),
            ASYNCHRONOUS: falling(10, death_seconds=9.0),
        },
    }


def three_seeds() -> dict[int, RunsByCondition]:
    """Return runs of three seeds; with seed 1 the asynchronous run on a slow link never reaches the target loss."""

    def done(seconds: float, last: float) -> RunsByCondition:
        late = falling(seconds, staleness=1.0)
        never = replace(late, points=[replace(point, loss=max(point.loss, last)) for point in late.points])
        return {
            "equal devices": {SYNCHRONOUS: falling(10), ASYNCHRONOUS: late},
            "a slow link": {SYNCHRONOUS: falling(30), ASYNCHRONOUS: never},
        }

    return {0: done(8, 0.0), 1: done(6, 0.5), 7: done(7, 0.0)}


class TrainingStub:
    """Stand-in for training that records its calls and raises the given exceptions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        self.seeds: list[int] = []
        self.errors: dict[int, BaseException] = {}
        """Exception raised at the n-th call."""
        monkeypatch.setattr(sync_vs_async, "_run", self.run)
        monkeypatch.setattr(sync_vs_async, "obstacle", lambda: None)
        monkeypatch.setattr(sync_vs_async, "draw", lambda *_: [])

    def run(self, condition: sync_vs_async.Condition, strategy: str, seed: int, steps: int) -> TrainingRun:
        self.calls.append((condition.name, strategy))
        self.seeds.append(seed)
        if error := self.errors.get(len(self.calls)):
            raise error
        return falling(10, death_seconds=1.0) if condition.dies else falling(steps / 10)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> TrainingStub:
    return TrainingStub(monkeypatch)
