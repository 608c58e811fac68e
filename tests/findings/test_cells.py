"""Findings on made-up cells whose answers are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.findings.bounce import bounce
from scalewise.findings.cell import Cell, Series
from scalewise.findings.floor import loading_floor
from scalewise.findings.law import inverse_batch_law
from scalewise.findings.line import fit_line
from scalewise.findings.saturation import saturation
from scalewise.findings.scaling import fixed_global, fixed_per_device
from scalewise.findings.speedup import best_speedups, chokes, speedups
from scalewise.findings.traffic import traffic, transfer_fit


def series(*cells: Cell) -> Series:
    return Series("model", "mirrored", cells)


def line(devices: int, seconds: dict[int, float], samples: int = 1000) -> list[Cell]:
    return [Cell(devices, batch, samples, epoch) for batch, epoch in seconds.items()]


def test_a_line_is_found_again() -> None:
    fit = fit_line([1, 2, 10], [3.5, 4.0, 8.0])
    assert fit
    assert (fit.intercept, fit.slope, fit.r_squared) == pytest.approx((3.0, 0.5, 1.0))
    assert fit.at(4) == pytest.approx(5.0)


def test_two_points_determine_no_fit() -> None:
    assert fit_line([1, 2], [1, 2]) is None
    assert fit_line([1, 1, 2], [1, 1.1, 2]) is None


def test_the_law_counts_the_short_last_step() -> None:
    epochs = {10: 0.5 + 0.01 * 96, 30: 0.5 + 0.01 * 32, 100: 0.5 + 0.01 * 10}
    law = inverse_batch_law(series(*line(1, epochs, samples=955)))
    assert law
    assert (law.fits[0].floor_seconds, law.fits[0].seconds_per_step) == pytest.approx((0.5, 0.01))


def test_the_floor_says_what_loading_takes_of_it() -> None:
    cells = [
        Cell(1, batch, 1000, 0.4 + 0.01 * 1000 / batch, phases={"load": 0.1 * batch / 1000}) for batch in (10, 20, 50)
    ]
    floor = loading_floor(series(*cells))
    assert floor
    assert floor.floor_seconds == pytest.approx(0.4)
    assert floor.load_seconds == pytest.approx(0.1)
    assert floor.sentence.endswith("loading the data takes 100 ms of it (25%)")


def test_jumps_at_unlike_shares_are_not_one_bounce() -> None:
    found = bounce(series(*line(1, {10: 1, 20: 2}), *line(2, {100: 1, 200: 2})))
    assert found
    assert (found.above, found.at_most) == (None, None)
    assert "not at one share per device (10 -> 20 on 1 and 50 -> 100 on 2)" in found.sentence


def test_a_rise_within_the_noise_is_no_bounce() -> None:
    noisy = [Cell(1, 10, 1000, 1.0, uncertainty=0.1), Cell(1, 20, 1000, 1.13, uncertainty=0.1)]
    assert bounce(series(*noisy)) is None


def test_a_difference_within_the_noise_neither_chokes_nor_gains() -> None:
    cells = [Cell(1, 10, 1000, 1.0, uncertainty=0.1), Cell(2, 10, 1000, 1.13, uncertainty=0.1)]
    found = chokes(series(*cells))
    assert found
    assert (found.choking, found.gaining) == ((), 0)
    assert [(each.slower, each.faster) for each in speedups(series(*cells))] == [(False, False)]


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        (2.5, "the one cell on several devices takes 2.5 times as long as one device (2 devices at batch 10)"),
        (0.5, "the one cell on several devices is faster than one device"),
        (1.0, "the one cell on several devices is not surely faster or slower than one device"),
    ],
)
def test_one_cell_is_not_spoken_of_as_many(seconds: float, sentence: str) -> None:
    found = chokes(series(*line(1, {10: 1.0}), *line(2, {10: seconds})))
    assert found
    assert found.sentence == sentence


@pytest.mark.parametrize(
    ("epochs", "sentence"),
    [
        ({10: 2.0, 20: 4.0}, "never gains from more devices: both cells take 2.0 to 4.0 times as long as one device, "),
        ({10: 0.5, 20: 0.6}, "both cells are faster than one device"),
        ({10: 0.5, 20: 0.6, 50: 0.7}, "all 3 cells are faster than one device"),
        ({10: 0.5, 20: 1.0}, "no cell of 2 is slower than one device, and 1 is faster"),
    ],
)
def test_cells_are_counted_in_words_that_fit(epochs: dict[int, float], sentence: str) -> None:
    found = chokes(series(*line(1, dict.fromkeys(epochs, 1.0)), *line(2, epochs)))
    assert found
    assert found.sentence.startswith(sentence)


def test_one_choking_cell_of_several_is_one() -> None:
    found = chokes(series(*line(1, {10: 1.0, 20: 1.0}), *line(2, {10: 2.0, 20: 0.5})))
    assert found
    assert found.sentence == (
        "1 of 2 cells chokes: it takes 2.0 times as long as one device, worst on 2 devices at batch 10; 1 is faster"
    )


def test_a_device_whose_largest_batch_is_the_fastest_is_not_saturated() -> None:
    found = saturation(series(*line(1, {10: 4, 20: 2, 40: 1})))
    assert found
    assert found.reached == []
    assert found.sentence.startswith("not saturated on 1 device")


def test_the_same_global_batch_and_the_same_batch_each_are_told_apart() -> None:
    cells = series(*line(1, {10: 4.0, 20: 4.0}), *line(2, {10: 4.0, 20: 2.0}))
    assert [(each.batch, each.speedups) for each in fixed_global(cells)] == [
        (10, {1: 1.0, 2: 1.0}),
        (20, {1: 1.0, 2: 2.0}),
    ]
    assert [(each.batch, each.speedups) for each in fixed_per_device(cells)] == [(10, {1: 1.0, 2: 2.0})]


def test_bytes_of_an_epoch_are_those_of_its_steps() -> None:
    cells = [Cell(2, batch, 1000, 1 + 1000 / batch * 0.01, bytes_per_step=20_000_000) for batch in (10, 20, 50)]
    moved, fit = traffic(series(*cells)), transfer_fit(series(*cells))
    assert moved
    assert moved.bytes_per_epoch == {2: {10: 2_000_000_000, 20: 1_000_000_000, 50: 400_000_000}}
    assert fit
    assert fit.GBps == pytest.approx(2.0)
    assert fit.floor_seconds == pytest.approx(1.0)


def test_a_line_below_zero_is_no_law_of_transfers() -> None:
    cells = [
        Cell(2, batch, 1000, seconds, bytes_per_step=20_000_000)
        for batch, seconds in ((10, 4.0), (20, 1.95), (50, 0.70), (100, 0.30))
    ]
    fit = transfer_fit(series(*cells))
    assert fit
    assert fit.floor_seconds < 0
    assert fit.r_squared > 0.98
    assert not fit.governs
    assert "do not explain the epoch (the line through the cells is below zero" in fit.sentence


def test_cells_of_a_few_steps_draw_no_line_of_transfers() -> None:
    cells = [
        Cell(2, batch, 1000, 1 + 1000 / batch * 0.01, bytes_per_step=20_000_000, timed_steps=5)
        for batch in (10, 20, 50)
    ]
    assert transfer_fit(series(*cells)) is None
    enough = [replace(cell, timed_steps=6) for cell in cells]
    assert transfer_fit(series(*enough, *(replace(cell, epoch_seconds=9.0) for cell in cells))) == transfer_fit(
        series(*enough)
    )


def test_nothing_is_said_without_cells_to_say_it_of() -> None:
    lone = series(Cell(2, 10, 1000, 1.0))
    assert [find(lone) for find in (chokes, bounce, saturation, inverse_batch_law, traffic, transfer_fit)] == [None] * 6


def test_the_best_speedup_is_not_the_noisiest_one() -> None:
    one = [Cell(1, batch, 1000, 1.0, uncertainty=0.01) for batch in (10, 20)]
    two = [Cell(2, 10, 1000, 0.6, uncertainty=0.02), Cell(2, 20, 1000, 0.4, uncertainty=2.3)]
    found = best_speedups(series(*one, *two))
    assert found
    assert [(each.batch, each.text) for each in found.best] == [(10, "1.67x")]


def test_a_slow_cell_that_is_hardly_known_is_not_surely_slower() -> None:
    """Twice as long, but it may have taken no time at all."""
    once, twice = Cell(2, 10, 100, 1.0, uncertainty=0.1), Cell(1, 10, 100, 2.1, uncertainty=1.0)
    assert not twice.surely_slower_than(once, 0.02)
    assert Cell(1, 10, 100, 2.1, uncertainty=0.5).surely_slower_than(once, 0.02)
