"""A reference cell, timed again and again: where it moves, the machine does, not the cells timed meanwhile."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median_low

from scalewise.measuring.spread import Spread
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

    def moved(self, seen: Interval, cost_seconds: float = 0.0, visits: Spread | None = None) -> bool:
        """Whether it is away from where it was before; remembers it."""
        away = self.is_away(seen, visits)
        self.history.append(seen.median)
        self.cost_seconds, self.since_seconds = cost_seconds, 0.0
        return away

    def is_away(self, seen: Interval, visits: Spread | None = None) -> bool:
        """Further than 5 % from its median, by more than its own noise.

        Two visits to one cell differ on a machine that stands still too: `visits` says by how much, where it is known.
        """
        if not self.history:
            return False
        usual = median_low(self.history)  # what disturbs a machine slows it down
        apart = visits.reach([seen.median]) * math.sqrt(1 + 1 / len(self.history)) if visits else 0.0
        low, high = min(seen.low, seen.median - apart), max(seen.high, seen.median + apart)
        return low > usual * (1 + MOVED) or high < usual * (1 - MOVED)
