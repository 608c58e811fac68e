"""Workers that wait for nobody, or for those that would be left too far behind, once they have found their pace."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from scalewise.simulation.bounded import waits_of
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
    max_staleness: int | None = None

    @cached_property
    def cycles(self) -> list[float]:
        """Seconds of a round of each worker."""
        starts: dict[int, list[float]] = defaultdict(list)
        for position, operation in enumerate(self.operations):
            if operation.phase == "load" and operation.rank < self.workers:
                starts[operation.rank].append(self.starts[position])
        return [(begun[-1] - begun[SETTLED]) / (len(begun) - 1 - SETTLED) for _, begun in sorted(starts.items())]

    @cached_property
    def waits(self) -> list[float]:
        """Seconds of a round in which each waits for others, where staleness is bounded."""
        return [0.0] * len(self.cycles) if self.max_staleness is None else waits_of(self.cycles, self.max_staleness)

    @property
    def step_seconds(self) -> float:
        return self.stretch / fmean(1 / (cycle + wait) for cycle, wait in zip(self.cycles, self.waits, strict=True))

    @property
    def waited_seconds(self) -> float:
        """Of `step_seconds`, those for others."""
        return self.step_seconds - self.stretch / fmean(1 / cycle for cycle in self.cycles)

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
