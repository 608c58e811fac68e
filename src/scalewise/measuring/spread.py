"""How far visits to a cell lie from each other, learnt from all cells of a sweep: of a few visits one learns little."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import TypeVar

from scalewise.results.statistics import critical_value

RARE, SURE = 2.326, 1.96
SEVERAL = 5
"""Standard deviations of a normal variable: one cell of a hundred like the others has visits further apart, and one
kind of cells of twenty like the others differs by as much from them."""
ROUNDS = 20

Kind = TypeVar("Kind", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """A standard deviation of visits around their cell's own centre, as a part of it."""

    part: float
    degrees_of_freedom: int
    """Visits beyond the first of every cell."""

    def reach(self, levels: Sequence[float]) -> float:
        """How far the 95 % interval of the mean of a cell's visits reaches.

        A cell is believed to be no steadier than the others, and may be less so: where its own visits are further
        apart, they count. Where they are so far apart, or several of them so close, as they hardly ever would be in a
        cell like the others, they alone do.
        """
        centre, count = fmean(levels), len(levels)
        own = spread_of(levels)
        steady = count >= SEVERAL and own**2 < _chi_squared(count - 1, -RARE) * self.part**2
        if steady or own**2 > _chi_squared(count - 1, RARE) * self.part**2:
            reach = critical_value(count - 1) * own
        else:
            reach = critical_value(self.degrees_of_freedom) * max(self.part, own)
        return reach * centre / math.sqrt(count)


def usual_spreads(kinds: Mapping[Kind, Sequence[Sequence[float]]]) -> dict[Kind, Spread | None]:
    """Of each kind of cells its own, where it surely differs from that of all others: else that of all together."""
    every = usual_spread([levels for cells in kinds.values() for levels in cells])
    found = {}
    for kind, cells in kinds.items():
        own = usual_spread(cells)
        others = usual_spread([levels for other, them in kinds.items() if other != kind for levels in them])
        found[kind] = own if own and others and _differ(own, others) else every
    return found


def usual_spread(cells: Sequence[Sequence[float]]) -> Spread | None:
    """Of cells that were visited twice or more; None without any. A few visits that lie far out change little: a cell
    counts with no more than is rare among the others."""
    cells = [levels for levels in cells if len(levels) > 1]
    if not cells:
        return None
    degrees = [len(levels) - 1 for levels in cells]
    squares = [spread_of(levels) ** 2 for levels in cells]
    usual = median(square / _chi_squared(free, 0.0) for square, free in zip(squares, degrees, strict=True))
    for _ in range(ROUNDS):
        kept = [min(square, _chi_squared(free, RARE) * usual) for square, free in zip(squares, degrees, strict=True)]
        usual = sum(square * free for square, free in zip(kept, degrees, strict=True)) / sum(degrees)
    return Spread(math.sqrt(usual), sum(degrees))


def _differ(one: Spread, other: Spread) -> bool:
    """Fisher's z of two variances, which is nearly normal."""
    if not one.part or not other.part:
        return one.part != other.part
    deviation = math.sqrt((1 / one.degrees_of_freedom + 1 / other.degrees_of_freedom) / 2)
    return abs(math.log(one.part / other.part)) > SURE * deviation


def spread_of(levels: Sequence[float]) -> float:
    """Of one cell; 0 of a lone visit."""
    return stdev(levels) / fmean(levels) if len(levels) > 1 else 0.0


def _chi_squared(degrees_of_freedom: int, deviations: float) -> float:
    """Its quantile over its degrees of freedom, by Wilson and Hilferty; the quantile of a normal variable is given."""
    if not degrees_of_freedom:
        return 0.0
    share = 2 / (9 * degrees_of_freedom)
    return (1 - share + deviations * math.sqrt(share)) ** 3
