"""Seconds of one device at any batch, from a profile of some: interpolated between them, extrapolated outside."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

from scalewise.results.profile import ProfileDocument, StepCost

Known = Literal["measured", "interpolated", "extrapolated"]
COMPUTE = ("forward", "backward", "update")
ABOVE = (0.8, 1.25)
"""Larger batches than were profiled: a device that becomes busier, or one that runs out of cache."""
LONE, LEAST_OFF = (0.6, 2.0), 3.0
"""Smaller ones where there is one figure and an estimate of the least: steps that do not go by the sample (the study's
take 0.7 of it from 20 to 10 clips), and how many times as short or long as estimated the least may be."""


@dataclass(frozen=True)
class Spread:
    """Between what a device's compute may lie, as factors of what is expected, and how that is known."""

    low: float
    high: float
    known: Known


class Costs:
    """A profile as a function of the batch."""

    def __init__(self, profile: ProfileDocument) -> None:
        self.profile = profile
        self.steps = sorted(profile.steps, key=lambda step: step.batch)
        self.batches = [step.batch for step in self.steps]
        self._found: dict[tuple[str, int], float] = {}

    def seconds(self, phase: str, samples: int) -> float:
        """Of a phase over so many samples; an empty share computes one. The loss is counted as forward."""
        if phase not in ("load", *COMPUTE):
            return 0.0
        key = (phase, max(samples, 1))
        if key not in self._found:
            self._found[key] = self._at(phase, key[1])
        return self._found[key]

    def busy_seconds(self, phase: str, samples: int) -> float:
        """Of those, what a device takes that is told in time what to do, as at the largest batch: the rest it may
        only wait."""
        if len(self.steps) == 1:
            return self.seconds(phase, samples)
        largest = self.steps[-1].batch
        return min(self.seconds(phase, samples), self.seconds(phase, largest) / largest * samples)

    def compute_seconds(self, samples: int) -> float:
        return sum(self.seconds(phase, samples) for phase in COMPUTE)

    def _at(self, phase: str, batch: int) -> float:
        """Below the smallest batch nothing says that a step gets quicker, except loading, which goes by the sample.

        A figure that stands alone is taken for that of a busy device, whose steps go by the sample throughout, down to
        the least that a step is estimated to take.
        """
        first, last = self.steps[0], self.steps[-1]
        if first is last and phase != "update":
            least = 0.0 if phase == "load" else min(self.profile.least_seconds / (_compute(first) or 1.0), 1.0)
            return getattr(first, phase) * max(batch / first.batch, least)  # type: ignore[no-any-return]
        if batch <= first.batch:
            return getattr(first, phase) * (batch / first.batch if phase == "load" else 1.0)  # type: ignore[no-any-return]
        if batch >= last.batch:
            return getattr(last, phase) * (1.0 if phase == "update" else batch / last.batch)  # type: ignore[no-any-return]
        below, above = self._around(batch)
        part = (batch - below.batch) / (above.batch - below.batch)
        return getattr(below, phase) * (1 - part) + getattr(above, phase) * part  # type: ignore[no-any-return]

    def _around(self, batch: int) -> tuple[StepCost, StepCost]:
        place = min(max(bisect_left(self.batches, batch), 1), len(self.batches) - 1)
        return self.steps[place - 1], self.steps[place]

    def spread(self, samples: int) -> Spread:
        """Wide where neighbouring seconds per sample jump, and outside of what was profiled.

        Between two profiled batches a step takes between what the smaller one's and the larger one's seconds per sample
        would say, but no less than the smaller's whole step; below all of them between in proportion and as long.
        """
        batch = max(samples, 1)
        if batch in self.batches:
            return Spread(1.0, 1.0, "measured")
        expected = self.compute_seconds(batch)
        if expected == 0:
            return Spread(1.0, 1.0, "interpolated")
        if batch < self.batches[0]:
            proportional, whole = _compute(self.steps[0]) * batch / self.batches[0], _compute(self.steps[0])
            if len(self.steps) == 1 and (least := self.profile.least_seconds):
                low = min(max(proportional, least / LEAST_OFF), LONE[0] * expected)
                high = min(whole, max(LONE[1] * expected, LEAST_OFF * least))
                return Spread(low / expected, max(high / expected, self.uncertain_above), "extrapolated")
            return Spread(
                min(proportional, 0.9 * expected) / expected,
                max(whole / expected, self.uncertain_above),
                "extrapolated",
            )
        if batch > self.batches[-1]:
            # A figure that may be all launching says nothing of how many samples a step has room for.
            idle = len(self.steps) == 1 and self.profile.least_seconds >= _compute(self.steps[0])
            low = min(ABOVE[0], _compute(self.steps[0]) / expected) if idle else ABOVE[0]
            return Spread(low, ABOVE[1], "extrapolated")
        below, above = self._around(batch)
        by_sample = sorted(_compute(step) / step.batch * batch for step in (below, above))
        floor, ceiling = sorted((_compute(below), _compute(above)))
        low, high = max(by_sample[0], floor), min(by_sample[1], ceiling)
        return Spread(min(low / expected, 1.0), max(high / expected, 1.0), "interpolated")

    @cached_property
    def uncertain_above(self) -> float:
        """Fewer samples may take longer, too: as much as the steepest change in seconds per sample that was seen."""
        costs = [_compute(step) / step.batch for step in self.steps]
        jumps = [max(later / earlier, 1.0) for earlier, later in pairwise(costs)]
        return max([1.1, *jumps])


def _compute(step: StepCost) -> float:
    return step.forward + step.backward + step.update
