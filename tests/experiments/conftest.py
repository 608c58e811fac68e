"""Made-up runs of synchronous and asynchronous training, and a stand-in for training them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scalewise.experiments import sync_vs_async
from scalewise.experiments.curves import Point
from scalewise.experiments.sync_vs_async import ASYNCHRONOUS, SYNCHRONOUS, Done
from scalewise.experiments.sync_vs_async_runs import Ran


def falling(seconds: float, **more: Any) -> Ran:
    """A loss that comes down from 1 to 0 in so many seconds, in 100 updates."""
    return Ran([Point(seconds * part / 100, 1 - part / 100, 16) for part in range(1, 101)], 160.0, **more)


def one_dies() -> Done:
    """Asynchronously it comes down to the loss before the death."""
    return {
        "equal devices": {SYNCHRONOUS: falling(10), ASYNCHRONOUS: falling(8, staleness=1.0)},
        "a dying worker": {
            SYNCHRONOUS: falling(20, death_seconds=2.0, resumed_seconds=6.0),
            ASYNCHRONOUS: falling(10, death_seconds=9.0),
        },
    }


def three_seeds() -> dict[int, Done]:
    """With seed 1 the slow link keeps the asynchronous run from ever coming down to the loss."""

    def done(seconds: float, last: float) -> Done:
        late = falling(seconds, staleness=1.0)
        never = replace(late, points=[replace(point, loss=max(point.loss, last)) for point in late.points])
        return {
            "equal devices": {SYNCHRONOUS: falling(10), ASYNCHRONOUS: late},
            "a slow link": {SYNCHRONOUS: falling(30), ASYNCHRONOUS: never},
        }

    return {0: done(8, 0.0), 1: done(6, 0.5), 7: done(7, 0.0)}


class Trained:
    """In place of training: notes what is asked for, and is interrupted, or fails, when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, str]] = []
        self.seeds: list[int] = []
        self.at: dict[int, BaseException] = {}
        monkeypatch.setattr(sync_vs_async, "_ran", self.ran)
        monkeypatch.setattr(sync_vs_async, "obstacle", lambda: None)
        monkeypatch.setattr(sync_vs_async, "draw", lambda *_: [])

    def ran(self, condition: sync_vs_async.Condition, strategy: str, seed: int, steps: int) -> Ran:
        self.asked.append((condition.name, strategy))
        self.seeds.append(seed)
        if error := self.at.get(len(self.asked)):
            raise error
        return falling(10, death_seconds=1.0) if condition.dies else falling(steps / 10)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Trained:
    return Trained(monkeypatch)
