"""Workers that wait for nobody, once they have found their pace."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from scalewise.simulation.simulate import Simulated
from scalewise.timeline import Span, Timeline

ROUNDS = 6
SETTLED = 2
"""Rounds after which workers no longer all come at once."""


@dataclass(frozen=True)
class Steady(Simulated):
    """So many rounds of every worker; `step_seconds` is one of them, as long as all workers together make it.

    A worker that takes twice as long does half as much of the work: rates add up, not seconds.
    """

    workers: int = 1
    rounds: int = ROUNDS
    stretch: float = 1.0
    """More workers than were simulated, who wait for the servers."""

    @cached_property
    def cycles(self) -> list[float]:
        """Seconds of a round of each worker."""
        starts: dict[int, list[float]] = defaultdict(list)
        for position, operation in enumerate(self.operations):
            if operation.phase == "load" and operation.rank < self.workers:
                starts[operation.rank].append(self.starts[position])
        return [(begun[-1] - begun[SETTLED]) / (len(begun) - 1 - SETTLED) for _, begun in sorted(starts.items())]

    @property
    def step_seconds(self) -> float:
        return self.stretch / fmean(1 / cycle for cycle in self.cycles)

    @property
    def transfer_seconds(self) -> float:
        return super().transfer_seconds / self.rounds * self.stretch

    @cached_property
    def timeline(self) -> Timeline:
        """All rounds, as steps of the slowest."""
        length = max(self.ends) / self.rounds
        return Timeline(
            tuple(
                Span(each.rank, each.phase, each.start, each.seconds, each.lane, int(each.start / length))
                for each in super().timeline.spans
            )
        )
