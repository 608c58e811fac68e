"""Training losses over time, and when they came down to a given one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """One update: when it ended, and the loss of its samples before it."""

    seconds: float
    loss: float
    samples: int


def smooth(points: Sequence[Point], samples: int) -> list[Point]:
    """Each loss replaced by the mean over the last so many samples: runs with unlike batches become comparable."""
    smoothed: list[Point] = []
    first = 0
    seen, total = 0, 0.0
    for point in points:
        seen += point.samples
        total += point.loss * point.samples
        while seen - points[first].samples >= samples:
            seen -= points[first].samples
            total -= points[first].loss * points[first].samples
            first += 1
        if seen >= samples:
            smoothed.append(Point(point.seconds, total / seen, point.samples))
    return smoothed


def seconds_to(points: Sequence[Point], loss: float) -> float | None:
    """When the (smoothed) loss first was no higher; None if it never was."""
    return next((point.seconds for point in points if point.loss <= loss), None)


def later(points: Sequence[Point], seconds: float) -> list[Point]:
    return [Point(point.seconds + seconds, point.loss, point.samples) for point in points]
