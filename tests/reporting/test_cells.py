"""Findings on made-up cells whose answers are known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from scalewise.reporting.epoch_laws import bounce, inverse_batch_law, loading_floor, saturation
from scalewise.reporting.finding import fit_line
from scalewise.reporting.series import Cell, Series
from scalewise.reporting.speedups import best_speedups, chokes, fixed_global, fixed_per_device, speedups
from scalewise.reporting.step_figures import traffic, transfer_fit


def series(*cells: Cell) -> Series:
    return Series("model", "mirrored", cells)


def line(devices: int, seconds: dict[int, float], samples: int = 1000) -> list[Cell]:
    return [Cell(devices, batch, samples, epoch) for batch, epoch in seconds.items()]


def test_fit_recovers_a_line() -> None:
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


def test_the_floor_includes_the_loading_time() -> None:
    cells = [
        Cell(1, batch, 1000, 0.4 + 0.01 * 1000 / batch, phases={"load": 0.1 * batch / 1000}) for batch in (10, 20, 50)
    ]
    floor = loading_floor(series(*cells))
    assert floor
    assert floor.floor_seconds == pytest.approx(0.4)
    assert floor.load_seconds == pytest.approx(0.1)
    assert floor.sentence.endswith("loading the data takes 100 ms of that (25%)")


def test_jumps_at_different_batches_per_device_are_not_one_bounce() -> None:
    finding = bounce(series(*line(1, {10: 1, 20: 2}), *line(2, {100: 1, 200: 2})))
    assert finding
    assert (finding.above, finding.at_most) == (None, None)
    assert "not at the same batch per device (from 10 to 20 on 1 device and 50 to 100 on 2 devices)" in finding.sentence


def test_a_rise_within_the_noise_is_no_bounce() -> None:
    noisy = [Cell(1, 10, 1000, 1.0, uncertainty=0.1), Cell(1, 20, 1000, 1.13, uncertainty=0.1)]
    assert bounce(series(*noisy)) is None


def test_a_difference_within_the_noise_neither_chokes_nor_gains() -> None:
    cells = [Cell(1, 10, 1000, 1.0, uncertainty=0.1), Cell(2, 10, 1000, 1.13, uncertainty=0.1)]
    finding = chokes(series(*cells))
    assert finding
    assert (finding.choking, finding.gaining) == ((), 0)
    assert [(speedup.slower, speedup.faster) for speedup in speedups(series(*cells))] == [(False, False)]


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        (2.5, "the only cell on several devices takes 2.5 times as long as one device (2 devices at batch 10)"),
        (0.5, "the only cell on several devices is faster than one device"),
        (1.0, "the only cell on several devices is uncertain: the interval of the speed-up includes 1"),
    ],
)
def test_sentence_about_a_single_cell(seconds: float, sentence: str) -> None:
    finding = chokes(series(*line(1, {10: 1.0}), *line(2, {10: seconds})))
    assert finding
    assert finding.sentence == sentence


@pytest.mark.parametrize(
    ("epochs", "sentence"),
    [
        ({10: 2.0, 20: 4.0}, "more devices are never faster: both cells take 2.0 to 4.0 times as long as one device "),
        ({10: 0.5, 20: 0.6}, "both cells are faster than one device"),
        ({10: 0.5, 20: 0.6, 50: 0.7}, "all 3 cells are faster than one device"),
        ({10: 0.5, 20: 1.0}, "1 of 2 cells is faster than one device, none slower"),
        ({10: 1.0, 20: 1.0}, "both cells are uncertain: the intervals include no speed-up"),
    ],
)
def test_sentence_about_several_cells(epochs: dict[int, float], sentence: str) -> None:
    finding = chokes(series(*line(1, dict.fromkeys(epochs, 1.0)), *line(2, epochs)))
    assert finding
    assert finding.sentence.startswith(sentence)


def test_headline_is_the_sentence_without_single_cells() -> None:
    cells = series(*line(1, {10: 1.0, 20: 1.0}), *line(2, {10: 2.0, 20: 0.5}))
    slower, best = chokes(cells), best_speedups(cells)
    assert slower
    assert best
    assert slower.headline == "1 of 2 cells chokes: it takes 2.0 times as long as one device"
    assert slower.sentence.startswith(f"{slower.headline} (slowest: 2 devices at batch 10); ")
    assert best.headline == "best speed-up: 2.00x on 2 devices (batch 20)"
    assert best.sentence.startswith(f"{best.headline}; ")


def test_sentence_about_one_choking_cell_of_several() -> None:
    finding = chokes(series(*line(1, {10: 1.0, 20: 1.0}), *line(2, {10: 2.0, 20: 0.5})))
    assert finding
    assert finding.sentence == (
        "1 of 2 cells chokes: it takes 2.0 times as long as one device (slowest: 2 devices at batch 10); 1 is faster"
    )


def test_a_device_whose_largest_batch_is_the_fastest_is_not_saturated() -> None:
    finding = saturation(series(*line(1, {10: 4, 20: 2, 40: 1})))
    assert finding
    assert finding.reached == []
    assert finding.sentence.startswith("not saturated on 1 device")


def test_strong_and_weak_scaling() -> None:
    cells = series(*line(1, {10: 4.0, 20: 4.0}), *line(2, {10: 4.0, 20: 2.0}))
    assert [(scaling.batch, scaling.speedups) for scaling in fixed_global(cells)] == [
        (10, {1: 1.0, 2: 1.0}),
        (20, {1: 1.0, 2: 2.0}),
    ]
    assert [(scaling.batch, scaling.speedups) for scaling in fixed_per_device(cells)] == [(10, {1: 1.0, 2: 2.0})]


def test_bytes_of_an_epoch_are_those_of_its_steps() -> None:
    cells = [Cell(2, batch, 1000, 1 + 1000 / batch * 0.01, bytes_per_step=20_000_000) for batch in (10, 20, 50)]
    sent, fit = traffic(series(*cells)), transfer_fit(series(*cells))
    assert sent
    assert sent.bytes_per_epoch == {2: {10: 2_000_000_000, 20: 1_000_000_000, 50: 400_000_000}}
    assert fit
    assert fit.GBps == pytest.approx(2.0)
    assert fit.floor_seconds == pytest.approx(1.0)


def test_a_fit_with_a_negative_floor_explains_nothing() -> None:
    cells = [
        Cell(2, batch, 1000, seconds, bytes_per_step=20_000_000)
        for batch, seconds in ((10, 4.0), (20, 1.95), (50, 0.70), (100, 0.30))
    ]
    fit = transfer_fit(series(*cells))
    assert fit
    assert fit.floor_seconds < 0
    assert fit.r_squared > 0.98
    assert not fit.governs
    assert "negative" in fit.sentence


def test_cells_with_few_timed_steps_are_not_fitted() -> None:
    cells = [
        Cell(2, batch, 1000, 1 + 1000 / batch * 0.01, bytes_per_step=20_000_000, timed_steps=5)
        for batch in (10, 20, 50)
    ]
    assert transfer_fit(series(*cells)) is None
    enough = [replace(cell, timed_steps=6) for cell in cells]
    assert transfer_fit(series(*enough, *(replace(cell, epoch_seconds=9.0) for cell in cells))) == transfer_fit(
        series(*enough)
    )


def test_no_findings_without_comparable_cells() -> None:
    lone = series(Cell(2, 10, 1000, 1.0))
    assert [find(lone) for find in (chokes, bounce, saturation, inverse_batch_law, traffic, transfer_fit)] == [None] * 6


def test_the_best_speedup_is_not_the_noisiest_one() -> None:
    one = [Cell(1, batch, 1000, 1.0, uncertainty=0.01) for batch in (10, 20)]
    two = [Cell(2, 10, 1000, 0.6, uncertainty=0.02), Cell(2, 20, 1000, 0.4, uncertainty=2.3)]
    finding = best_speedups(series(*one, *two))
    assert finding
    assert [(speedup.batch, speedup.text) for speedup in finding.best] == [(10, "1.67x")]
    assert [(speedup.batch, speedup.text) for speedup in finding.too_noisy] == [(20, "2.50x (± 230%)")]
    assert finding.over_best_single == {2: pytest.approx(1 / 0.6)}


def test_every_drawn_speedup_is_in_the_finding_or_below_it() -> None:
    """A cell timed once shows a higher speed-up than a cell timed well."""
    one = [Cell(1, batch, 1000, 1.0, uncertainty=0.01) for batch in (10, 20)]
    two = [Cell(2, 10, 1000, 1 / 0.88, uncertainty=0.02), Cell(2, 20, 1000, 1 / 1.43, uncertainty=math.inf)]
    finding, drawn = best_speedups(series(*one, *two)), fixed_global(series(*one, *two))
    assert finding
    reported = [speedup.speedup for speedup in (*finding.best, *finding.too_noisy)]
    assert max(reported) == max(scaling.speedups[2] for scaling in drawn) == pytest.approx(1.43)
    assert (
        "best speed-up: 0.88x on 2 devices (batch 10); too uncertain: 1.43x (timed once) on 2 devices (batch 20)"
        in finding.sentence
    )


def test_the_figure_of_one_global_batch_draws_the_speedups_of_the_findings() -> None:
    cells = series(
        *(Cell(1, batch, 1000, 1.0, uncertainty=0.01) for batch in (20, 10)),
        *(Cell(count, 10, 1000, 0.6 / count, uncertainty=0.1) for count in (2, 4)),
        Cell(2, 30, 1000, 0.4),
    )
    [scaling] = fixed_global(cells)
    assert scaling.batch == 10
    assert scaling.speedups == {1: 1.0} | {speedup.devices: speedup.speedup for speedup in speedups(cells)}
    assert scaling.uncertainty == {speedup.devices: speedup.uncertainty for speedup in speedups(cells)}


def test_a_slow_but_uncertain_cell_is_not_surely_slower() -> None:
    """It takes twice as long, but its interval starts at 0."""
    once, twice = Cell(2, 10, 100, 1.0, uncertainty=0.1), Cell(1, 10, 100, 2.1, uncertainty=1.0)
    assert not twice.surely_slower_than(once, 0.02)
    assert Cell(1, 10, 100, 2.1, uncertainty=0.5).surely_slower_than(once, 0.02)
