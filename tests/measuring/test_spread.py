"""How far visits lie from each other, by all cells of a sweep; intervals of a few visits hold the truth as often as
they say."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from statistics import fmean

import pytest

from scalewise.measuring.spread import Spread, usual_spread, usual_spreads

Visit = Callable[[Random], float]


def test_cells_of_any_length_are_pooled_by_their_relative_spread() -> None:
    found = usual_spread([[99.0, 101.0], [0.198, 0.202], [5.0]])
    assert found is not None
    assert found.part == pytest.approx(0.02 / 2**0.5)
    assert found.degrees_of_freedom == 2
    assert usual_spread([[5.0], []]) is None


def test_a_few_visits_are_as_sure_as_all_cells_together_make_them() -> None:
    """20 degrees of freedom: 2.086 instead of the 12.706 of two visits."""
    usual = Spread(0.01, 20)
    assert usual.reach([0.999, 1.001]) == pytest.approx(2.086 * 0.01 / 2**0.5)
    assert usual.reach([3.0]) == pytest.approx(2.086 * 0.03)


def test_a_cell_that_is_less_steady_than_the_others_has_its_own_spread() -> None:
    usual = Spread(0.01, 20)
    own = 0.04 / 2**0.5
    assert usual.reach([0.985, 1.015]) == pytest.approx(2.086 * 0.03 / 2**0.5 / 2**0.5)
    assert usual.reach([0.98, 1.02]) == pytest.approx(12.706 * own / 2**0.5)


def test_visits_that_lie_far_out_leave_the_others_as_they_are() -> None:
    random = Random(2)
    steady = [[random.gauss(1, 0.01) for _ in range(3)] for _ in range(12)]
    quiet, disturbed = usual_spread(steady), usual_spread([*steady[:-1], [1.0, 1.0, 1.8]])
    assert quiet is not None
    assert disturbed is not None
    assert quiet.part < disturbed.part < 1.4 * quiet.part  # by plain squares it would be ten times as much


def test_kinds_of_cells_that_surely_differ_have_a_spread_each() -> None:
    random = Random(6)

    def cells(part: float) -> list[list[float]]:
        return [[random.gauss(1, part) for _ in range(4)] for _ in range(4)]

    apart = usual_spreads({1: cells(0.01), 2: cells(0.05)})
    assert [found.part for found in apart.values() if found] == pytest.approx([0.01, 0.05], rel=0.3)
    assert [found.degrees_of_freedom for found in apart.values() if found] == [12, 12]
    alike = usual_spreads({1: cells(0.03), 2: cells(0.03), 4: [[1.0]]})
    assert alike[1] == alike[2] == alike[4]
    assert alike[4] is not None
    assert alike[4].degrees_of_freedom == 24
    assert usual_spreads({1: [[1.0]]}) == {1: None}


def normal(part: float) -> Visit:
    return lambda random: random.gauss(1, part)


def heavy_tailed(part: float) -> Visit:
    """Student's t of three degrees of freedom, whose standard deviation is `part`."""

    def visit(random: Random) -> float:
        return max(0.2, 1 + part * random.gauss(0, 1) / math.sqrt(random.gammavariate(1.5, 2)))

    return visit


def now_and_then_disturbed(part: float) -> Visit:
    """One visit of twenty takes a fifth to a half longer."""
    return lambda random: random.gauss(1, part) * (random.uniform(1.2, 1.5) if random.random() < 0.05 else 1)


@pytest.mark.parametrize("visits", [2, 3, 5])
@pytest.mark.parametrize(
    "kinds",
    [
        {1: normal(0.01), 2: normal(0.01)},
        {1: normal(0.1), 2: normal(0.1)},
        {1: heavy_tailed(0.03), 2: heavy_tailed(0.03)},
        {1: heavy_tailed(0.1), 2: heavy_tailed(0.1)},
        {1: now_and_then_disturbed(0.02), 2: now_and_then_disturbed(0.02)},
        {1: normal(0.02), 2: normal(0.06)},
        {1: heavy_tailed(0.02), 2: heavy_tailed(0.06)},
    ],
    ids=["1 %", "10 %", "3 % with tails", "10 % with tails", "disturbed", "two kinds", "two kinds with tails"],
)
def test_95_percent_hold_the_truth(kinds: dict[int, Visit], visits: int) -> None:
    """Of sweeps of six cells, half of them on one device and half on two."""
    random, held, cells = Random(3), 0, 0
    for _ in range(120):
        seen = {kind: [[visit(random) for _ in range(visits)] for _ in range(3)] for kind, visit in kinds.items()}
        for kind, usual in usual_spreads(seen).items():
            assert usual is not None
            held += sum(abs(fmean(levels) - 1) <= usual.reach(levels) for levels in seen[kind])
            cells += len(seen[kind])
    assert 0.92 <= held / cells <= 0.99
