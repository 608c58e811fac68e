"""Timed transfers as two constants: a latency and a bandwidth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]
"""Bytes over the busiest link, and the seconds that they took."""


GOOD_ENOUGH = 0.03
"""A line so close to its points (root mean square) is left alone."""


@dataclass(frozen=True)
class Line:
    """seconds = latency + bytes / bandwidth, and how far that is from what was timed."""

    latency_us: float
    GBps: float
    error_percent: float
    """The median over the points."""

    def seconds(self, bytes: float) -> float:
        return self.latency_us * 1e-6 + bytes / (self.GBps * 1e9)


def fit_line(points: Sequence[Point]) -> Line:
    """Least squares between those of seconds and those of relative errors: 64 MB count most, but a kilobyte counts.

    Neither constant falls below zero.
    """
    if not points:
        raise ValueError("a line needs points")
    latency, per_byte = _least_squares(points)
    if latency < 0 or len(points) == 1:
        latency, per_byte = 0.0, _mean_slope(points)
    if per_byte <= 0:
        latency, per_byte = min(seconds for _, seconds in points), _mean_slope(points[-1:])
    errors = sorted(abs(latency + bytes * per_byte - seconds) / seconds for bytes, seconds in points)
    return Line(latency * 1e6, 1e-9 / per_byte, 100 * errors[len(errors) // 2])


def fit_pieces(points: Sequence[Point], fewest: int = 3) -> list[tuple[float, Line]]:
    """One line, or two where that halves the error: what caches hold, and what they do not.

    Each with the bytes from which it holds, which lie between two points. Points come in order of their bytes.
    """
    whole = fit_line(points)
    if squared_error(whole, points) < GOOD_ENOUGH**2 * sum(seconds for _, seconds in points):
        return [(0.0, whole)]
    best, chosen = squared_error(whole, points) / 2, [(0.0, whole)]
    for cut in range(fewest, len(points) - fewest + 1):
        below, above = fit_line(points[:cut]), fit_line(points[cut:])
        error = squared_error(below, points[:cut]) + squared_error(above, points[cut:])
        if error < best:
            border = math.sqrt(points[cut - 1][0] * points[cut][0])
            best, chosen = error, [(0.0, below), (border, above)]
    return chosen


def squared_error(line: Line, points: Sequence[Point]) -> float:
    return sum((line.seconds(bytes) - seconds) ** 2 / seconds for bytes, seconds in points)


def _least_squares(points: Sequence[Point]) -> tuple[float, float]:
    """Minimises sum((latency + bytes x slope - seconds)² / seconds): two equations in two unknowns."""
    ones = sum(1 / seconds for _, seconds in points)
    mixed = sum(bytes / seconds for bytes, seconds in points)
    squares = sum(bytes * bytes / seconds for bytes, seconds in points)
    left, right = float(len(points)), sum(bytes for bytes, _ in points)
    determinant = ones * squares - mixed * mixed
    if determinant <= 1e-12 * ones * squares:
        return -1.0, 0.0
    return (left * squares - right * mixed) / determinant, (ones * right - mixed * left) / determinant


def _mean_slope(points: Sequence[Point]) -> float:
    """The same with no latency."""
    return sum(bytes for bytes, _ in points) / sum(bytes * bytes / seconds for bytes, seconds in points)
