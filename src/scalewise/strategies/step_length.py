"""About how long a step of a pipeline takes: enough to compare numbers of micro-batches before anything is timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scalewise.plan import Section
from scalewise.strategies.schedules import Work
from scalewise.strategies.stage_cuts import FLOPS_PER_BYTE, costs_of
from scalewise.strategies.strategy import Backend

BACKWARD = 2.0
"""Times what forward computes, and as many kernels."""
WEIGHTS_MOVED = {"forward": 1, "backward": 5}
"""Times that a micro-batch moves them: read; read again, gradients written, and added to those of the one before."""
OPERATIONS = 8
"""Of a section, where nobody counted them."""


class Pace(NamedTuple):
    """What else takes time, in flops that a device computes meanwhile."""

    operation: float
    """A kernel begins."""
    message: float
    """One is sent and received."""
    sent_byte: float


PACES: dict[tuple[bool, Backend], Pace] = {
    (False, "gloo"): Pace(2.5e5, 5e6, 50),
    (True, "gloo"): Pace(2.5e8, 4e9, 8000),
    (True, "nccl"): Pace(2.5e8, 7e8, 200),
}
"""By GPU or not: cores of 50 GFLOPS with sockets of 1 GB/s, GPUs of 40 TFLOPS through host memory, and with NVLink."""

Ends = dict[tuple[int, int], float]
"""By stage and micro-batch."""


@dataclass(frozen=True)
class StepLength:
    """Of micro-batches of so many samples through stages in a row."""

    sections: Sequence[Section]
    ranges: Sequence[range]
    """The sections of every stage."""
    size: int
    pace: Pace
    recompute: bool = False

    def of(self, schedule: Sequence[Sequence[Work]]) -> float:
        """In flops, until every device has done its work in order, each piece when what it needs has come."""
        lengths, hops = self._lengths(), self._hops()
        there: Ends = {}
        back: Ends = {}
        free, at = [0.0] * len(schedule), [0] * len(schedule)
        while any(done < len(works) for done, works in zip(at, schedule, strict=True)):
            for device, works in enumerate(schedule):
                for work in works[at[device] :]:
                    came = self._came(work, there, back, hops)
                    if came is None:
                        break
                    ends = there if work.phase == "forward" else back
                    free[device] = max(came, free[device]) + lengths[work.phase][work.stage]
                    ends[work.stage, work.microbatch] = free[device]
                    at[device] += 1
        return max(free)

    def _came(self, work: Work, there: Ends, back: Ends, hops: Sequence[float]) -> float | None:
        """When what it needs is there; None: not known yet."""
        stage, number = work.stage, work.microbatch
        if work.phase == "backward" and stage == len(self.ranges) - 1:
            return there.get((stage, number))
        if work.phase == "backward":
            returned = back.get((stage + 1, number))
            return None if returned is None else returned + hops[stage]
        passed = there.get((stage - 1, number)) if stage else 0.0
        return None if passed is None else passed + (hops[stage - 1] if stage else 0.0)

    def _lengths(self) -> dict[str, list[float]]:
        """Of every stage."""
        costs = costs_of(self.sections)
        forward = [
            sum(
                self.size * costs[at] + self.pace.operation * (self.sections[at].operations or OPERATIONS)
                for at in each
            )
            for each in self.ranges
        ]
        moved = [FLOPS_PER_BYTE * sum(self.sections[at].parameter_bytes for at in each) for each in self.ranges]
        times = BACKWARD + self.recompute
        return {
            "forward": [own + WEIGHTS_MOVED["forward"] * weights for own, weights in zip(forward, moved, strict=True)],
            "backward": [
                times * own + (WEIGHTS_MOVED["backward"] + self.recompute) * weights
                for own, weights in zip(forward, moved, strict=True)
            ],
        }

    def _hops(self) -> list[float]:
        """Behind every stage but the last."""
        return [
            sum(
                self.pace.message + self.pace.sent_byte * self.size * bytes
                for bytes in self.sections[each.stop - 1].passed_bytes
            )
            for each in self.ranges[:-1]
        ]
