"""The bounce: where a larger batch suddenly costs more seconds per sample, at the same share per device."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from scalewise.findings.cell import Series
from scalewise.findings.finding import Finding, listed

SMALLEST_JUMP = 0.10
"""Of seconds per sample, between neighbouring batches."""


@dataclass(frozen=True)
class Jump:
    """At one device count: the last batch before it, the first one after it, each per device."""

    devices: int
    last_low: int
    first_high: int
    rise: float


@dataclass(frozen=True)
class Bounce(Finding):
    """The largest jump of each device count, and the share per device between which all of them happen."""

    jumps: tuple[Jump, ...]
    above: int | None
    """Samples per device after which seconds per sample jump; None if the device counts disagree."""
    at_most: int | None

    @property
    def sentence(self) -> str:
        rises = [jump.rise for jump in self.jumps]
        size = f"{min(rises):.0%}" if len(rises) == 1 else f"{min(rises):.0%} to {max(rises):.0%}"
        each = listed([f"{jump.last_low} -> {jump.first_high} on {jump.devices}" for jump in self.jumps])
        jumped = f"seconds per sample jump by {size}"
        if self.above is None:
            return f"{jumped}, but not at one share per device ({each})"
        last = round(median(jump.last_low for jump in self.jumps))
        within = f"; all between {self.above} and {self.at_most}" if len(self.jumps) > 1 else ""
        return f"{jumped} above about {last} samples per device ({each}{within})"


def bounce(series: Series) -> Bounce | None:
    """None where seconds per sample rise with the batch nowhere."""
    jumps = []
    for devices in series.device_counts:
        rising = [
            Jump(
                devices,
                low.batch_per_device,
                high.batch_per_device,
                low.samples_per_second / high.samples_per_second - 1,
            )
            for low, high in pairwise(series.line(devices))
            if high.surely_slower_than(low, SMALLEST_JUMP)
        ]
        if rising:
            jumps.append(max(rising, key=lambda jump: jump.rise))
    if not jumps:
        return None
    above, at_most = max(jump.last_low for jump in jumps), min(jump.first_high for jump in jumps)
    agree = above < at_most
    return Bounce(series.name, tuple(jumps), above if agree else None, at_most if agree else None)
