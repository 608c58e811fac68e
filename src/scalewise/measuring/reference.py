"""A reference cell, timed again and again: where it moves, the machine does, not the cells timed meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from scalewise.results.statistics import Interval

MOVED = 0.05
SHARE = 0.1
"""Of the time, at most, that is spent on the reference."""


@dataclass
class Reference:
    """Its step times so far, and when it is due again."""

    history: list[float] = field(default_factory=list)
    cost_seconds: float = 0.0
    since_seconds: float = 0.0
    """Of other work since it was last timed."""

    def due(self) -> bool:
        return self.since_seconds * SHARE >= self.cost_seconds

    def moved(self, seen: Interval, cost_seconds: float = 0.0) -> bool:
        """Whether it is now further than 5 % from its median, by more than its own noise; remembers it."""
        usual = median(self.history) if self.history else seen.median
        self.history.append(seen.median)
        self.cost_seconds, self.since_seconds = cost_seconds, 0.0
        return seen.low > usual * (1 + MOVED) or seen.high < usual * (1 - MOVED)
