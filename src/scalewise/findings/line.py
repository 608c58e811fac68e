"""A straight line through measured points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Line:
    """y = intercept + slope x."""

    intercept: float
    slope: float
    r_squared: float
    worst_error: float
    """The largest relative error over the points."""

    def at(self, x: float) -> float:
        return self.intercept + self.slope * x


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line | None:
    """Least squares of relative errors: timings err in proportion. None where no line is determined."""
    if len(x) < 3 or len(set(x)) < 3:
        return None
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    scale = xs.max() or 1.0
    [intercept, slope], *_ = np.linalg.lstsq(np.stack([1 / ys, xs / scale / ys], axis=1), np.ones_like(ys))
    errors = intercept + slope * xs / scale - ys
    spread = float(((ys - ys.mean()) ** 2).sum())
    r_squared = 1 - float((errors**2).sum()) / spread if spread else 0.0
    return Line(float(intercept), float(slope / scale), r_squared, float(np.abs(errors / ys).max()))


def r_squared_text(r_squared: float) -> str:
    """Never rounded up to 1."""
    return f"{math.floor(r_squared * 10_000) / 10_000:.4f}" if r_squared > 0.99 else f"{r_squared:.2f}"
