"""Speed-ups over the number of devices, a line per batch: what two figures have in common."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from scalewise.figures.style import COLOURS, MARKERS, whiskers, worth_showing
from scalewise.findings.scaling import Scaling

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES = 6
APART = 0.025
"""Of the distance between two device counts: so far apart whiskers stand, which would cover each other."""


def chosen(scalings: list[Scaling], wanted: Collection[int] = ()) -> list[Scaling]:
    """As many as can be told apart: the wanted batches, the smallest, the largest, and some between."""
    if len(scalings) <= MOST_LINES:
        return scalings
    batches = [scaling.batch for scaling in scalings]
    kept = {*wanted, batches[0], batches[-1]} & set(batches)
    while len(kept) < MOST_LINES:
        kept.add(max(batches, key=lambda batch: min(abs(batches.index(batch) - batches.index(each)) for each in kept)))
    return [scaling for scaling in scalings if scaling.batch in kept]


def uncertain(scalings: Sequence[Scaling]) -> bool:
    """Whether there is a whisker to draw."""
    return any(worth_showing(part) for scaling in scalings for part in scaling.uncertainty.values())


def explained(subtitle: str, scalings: Sequence[Scaling]) -> str:
    """With what whiskers are, where there are any."""
    sentences = [subtitle.removesuffix("."), *(["Whiskers: 95 % intervals"] if uncertain(scalings) else [])]
    return ". ".join(filter(None, sentences))


def places(scalings: Sequence[Scaling]) -> list[dict[int, float]]:
    """Where each line has its device counts: side by side where there are whiskers, but for one device, which is 1."""
    apart = APART if uncertain(scalings) else 0.0
    return [
        {count: count + (apart * (number - (len(scalings) - 1) / 2) if count > 1 else 0.0) for count in line.speedups}
        for number, line in enumerate(scalings)
    ]


def draw_lines(axes: Axes, scalings: Sequence[Scaling], per_device: bool = False) -> float:
    """Speed-ups, or the part of every device that is put to use; up to where they reach, whiskers included."""
    highest = 1.0
    for number, (scaling, place) in enumerate(zip(scalings, places(scalings), strict=True)):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        values = efficiencies(scaling) if per_device else scaling.speedups
        axes.plot(
            [place[count] for count in values],
            list(values.values()),
            color=colour,
            marker=marker,
            label=f"{scaling.batch}",
            zorder=3,
        )
        open_parts = {count: scaling.uncertainty.get(count, 0.0) for count in values}
        whiskers(axes, [(place[count], values[count], open_parts[count]) for count in values], colour)
        # Whiskers longer than their value leave the figure.
        highest = max(highest, *(value * (1 + _shown(open_parts[count])) for count, value in values.items()))
    return highest


def efficiencies(scaling: Scaling) -> dict[int, float]:
    """The part of every device that is put to use."""
    return {count: speedup / count for count, speedup in scaling.speedups.items()}


def _shown(part: float) -> float:
    return part if worth_showing(part) and part < 1 else 0.0
