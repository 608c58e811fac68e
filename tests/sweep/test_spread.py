"""Spread between visits, pooled over the cells of a sweep; 95% intervals contain the true value 95% of the time."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from statistics import fmean

import pytest

from scalewise.sweep.drift import Spread, usual_spread, usual_spreads

Visit = Callable[[Random], float]


def test_cells_of_any_length_are_pooled_by_their_relative_spread() -> None:
    spread = usual_spread([[99.0, 101.0], [0.198, 0.202], [5.0]])
    assert spread is not None
    assert spread.part == pytest.approx(0.02 / 2**0.5)
    assert spread.degrees_of_freedom == 2
    assert usual_spread([[5.0], []]) is None


def test_the_pooled_spread_narrows_intervals_of_few_visits() -> None:
    """Student's t is 2.086 with 20 degrees of freedom and 12.706 with the one of two visits."""
    usual = Spread(0.01, 20)
    assert usual.reach([0.999, 1.001]) == pytest.approx(2.086 * 0.01 / 2**0.5)
    assert usual.reach([3.0]) == pytest.approx(2.086 * 0.03)


def test_a_cell_with_a_larger_spread_uses_its_own() -> None:
    usual = Spread(0.01, 20)
    own = 0.04 / 2**0.5
    assert usual.reach([0.985, 1.015]) == pytest.approx(2.086 * 0.03 / 2**0.5 / 2**0.5)
    assert usual.reach([0.98, 1.02]) == pytest.approx(12.706 * own / 2**0.5)


def test_an_outlier_changes_the_pooled_spread_little() -> None:
    random = Random(2)
    steady = [[random.gauss(1, 0.01) for _ in range(3)] for _ in range(12)]
    quiet, disturbed = usual_spread(steady), usual_spread([*steady[:-1], [1.0, 1.0, 1.8]])
    assert quiet is not None
    assert disturbed is not None
    assert quiet.part < disturbed.part < 1.4 * quiet.part  # without clipping it would be ten times as large


def test_kinds_of_cells_that_clearly_differ_have_separate_spreads() -> None:
    random = Random(6)

    def cells(part: float) -> list[list[float]]:
        return [[random.gauss(1, part) for _ in range(4)] for _ in range(4)]

    different = usual_spreads({1: cells(0.01), 2: cells(0.05)})
    assert [spread.part for spread in different.values() if spread] == pytest.approx([0.01, 0.05], rel=0.3)
    assert [spread.degrees_of_freedom for spread in different.values() if spread] == [12, 12]
    alike = usual_spreads({1: cells(0.03), 2: cells(0.03), 4: [[1.0]]})
    assert alike[1] == alike[2] == alike[4]
    assert alike[4] is not None
    assert alike[4].degrees_of_freedom == 24
    assert usual_spreads({1: [[1.0]]}) == {1: None}


def normal(part: float) -> Visit:
    return lambda random: random.gauss(1, part)


def heavy_tailed(part: float) -> Visit:
    """Return visits with Student's t noise of three degrees of freedom and standard deviation `part`."""

    def visit(random: Random) -> float:
        return max(0.2, 1 + part * random.gauss(0, 1) / math.sqrt(random.gammavariate(1.5, 2)))

    return visit


def occasionally_disturbed(part: float) -> Visit:
    """Return visits of which one in twenty takes 20% to 50% longer."""
    return lambda random: random.gauss(1, part) * (random.uniform(1.2, 1.5) if random.random() < 0.05 else 1)


@pytest.mark.parametrize("visits", [2, 3, 5])
@pytest.mark.parametrize(
    "kinds",
    [
        {1: normal(0.01), 2: normal(0.01)},
        {1: normal(0.1), 2: normal(0.1)},
        {1: heavy_tailed(0.03), 2: heavy_tailed(0.03)},
        {1: heavy_tailed(0.1), 2: heavy_tailed(0.1)},
        {1: occasionally_disturbed(0.02), 2: occasionally_disturbed(0.02)},
        {1: normal(0.02), 2: normal(0.06)},
        {1: heavy_tailed(0.02), 2: heavy_tailed(0.06)},
    ],
    ids=["1 %", "10 %", "3 % with tails", "10 % with tails", "disturbed", "two kinds", "two kinds with tails"],
)
def test_95_percent_of_intervals_contain_the_true_value(kinds: dict[int, Visit], visits: int) -> None:
    """Each sweep has six cells, half of them on one device and half on two."""
    random, hits, cells = Random(3), 0, 0
    for _ in range(120):
        levels_of_kind = {
            kind: [[visit(random) for _ in range(visits)] for _ in range(3)] for kind, visit in kinds.items()
        }
        for kind, usual in usual_spreads(levels_of_kind).items():
            assert usual is not None
            hits += sum(abs(fmean(levels) - 1) <= usual.reach(levels) for levels in levels_of_kind[kind])
            cells += len(levels_of_kind[kind])
    assert 0.92 <= hits / cells <= 0.99
