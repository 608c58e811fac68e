"""The numbers that figures draw."""

from __future__ import annotations

import math

import pytest

from scalewise.published.stevens import stevens_environment, stevens_measurements
from scalewise.reporting.figure_style import COLOURS, INK, device_look, file_name
from scalewise.reporting.figures import BarChart, bar_charts, chosen, efficiencies, places
from scalewise.reporting.series import Cell, Series, series_of
from scalewise.reporting.speedups import Scaling
from scalewise.reporting.step_figures import batches_with_phases, stacks, transfers


@pytest.fixture(scope="module")
def study() -> dict[str, Series]:
    environment = stevens_environment()
    return {series.workload: series for series in series_of(stevens_measurements(), {environment.id: environment})}


def test_the_study_gives_its_eight_bar_charts(study: dict[str, Series]) -> None:
    charts = [(name, chart.batch) for name, series in study.items() for chart in bar_charts(series)]
    assert charts == [(name, batch) for name in ("linear", "conv") for batch in (20, 50, 100, 300)]
    assert bar_charts(study["linear"])[0].seconds == {1: 0.5914, 2: 4.5610, 3: 4.6384, 4: 4.6626}
    assert bar_charts(study["conv"])[3].seconds == {1: 3.0324, 2: 1.5206, 3: 1.1452, 4: 0.9987}


def test_other_grids_give_up_to_four_bar_charts_from_their_smallest_to_their_largest_batch() -> None:
    cells = [Cell(devices, batch, 100, 1.0) for devices in (1, 2) for batch in (1, 2, 4, 8, 16, 32, 64)]
    lone = Cell(1, 128, 100, 1.0)
    assert [chart.batch for chart in bar_charts(Series("m", "s", (*cells, lone)))] == [1, 4, 16, 64]


def test_bar_charts_need_two_device_counts() -> None:
    assert bar_charts(Series("m", "s", (Cell(1, 10, 100, 1.0), Cell(2, 20, 100, 1.0)))) == []


def test_transfers_are_gigabytes_against_seconds(study: dict[str, Series]) -> None:
    points = transfers(study["linear"])
    assert list(points) == [2, 3, 4]
    assert points[2][-1] == pytest.approx((19.3635, 8.9045), abs=1e-3)
    assert len(points[4]) == 12


def test_at_most_six_lines_are_drawn_including_the_wanted_batches() -> None:
    scalings = [Scaling(batch, {1: 1.0}) for batch in (10, 20, 30, 50, 70, 100, 150, 200, 300)]
    batches = [scaling.batch for scaling in chosen(scalings, wanted=[20, 50])]
    assert len(batches) == 6
    assert {10, 20, 50, 300} <= set(batches)


def test_efficiency_is_speedup_over_devices() -> None:
    assert efficiencies(Scaling(10, {1: 1.0, 2: 1.5, 4: 3.0})) == {1: 1.0, 2: 0.75, 4: 0.75}


def test_lines_with_whiskers_are_shifted_apart_except_at_one_device() -> None:
    def at(uncertainty: float) -> list[dict[int, float]]:
        return places([Scaling(batch, {1: 1.0, 2: 1.5}, {2: uncertainty}) for batch in (10, 20, 40)])

    assert at(0.3) == [pytest.approx({1: 1, 2: place}) for place in (1.975, 2.0, 2.025)]
    assert at(0.01) == [{1: 1, 2: 2}] * 3


def phased(devices: int, batch: int, **phases: float) -> Cell:
    return Cell(devices, batch, 100, 1.0, phases=phases)


def test_phases_are_stacked_in_order_and_the_shared_baseline_comes_first_and_once() -> None:
    one = phased(1, 10, backward=0.2, forward=0.1, update=0.0)
    mirrored = Series("m", "mirrored", (phased(2, 10, reduce=0.3, backward=0.1, forward=0.1), one))
    ring = Series("m", "ring", (phased(2, 10, forward=0.1, reduce=0.1), one))
    bars = stacks([mirrored, ring], 10)
    assert [bar.label for bar in bars] == ["1 device", "mirrored, 2 devices", "ring, 2 devices"]
    assert [list(bar.phases) for bar in bars] == [
        ["forward", "backward"],
        ["forward", "backward", "reduce"],
        ["forward", "reduce"],
    ]
    assert [bar.between_devices for bar in bars] == pytest.approx([0, 0.6, 0.5])


def test_phases_are_shown_at_the_smallest_and_the_largest_batch_with_several_bars() -> None:
    cells = [phased(devices, batch, forward=0.1) for devices in (1, 2) for batch in (10, 20, 40)]
    assert batches_with_phases([Series("m", "mirrored", (*cells, phased(1, 80, forward=0.1)))]) == [10, 40]
    assert batches_with_phases([Series("m", "mirrored", (Cell(1, 10, 100, 1.0), Cell(2, 10, 100, 1.0)))]) == []


def test_a_device_count_keeps_its_colour() -> None:
    assert device_look(1, [1, 2, 4])["color"] == INK
    assert device_look(4, [1, 2, 4])["color"] == COLOURS[1]
    assert device_look(1, [1, 2, 4])["label"] == "1 device"


def test_file_names_are_plain() -> None:
    assert file_name("epochs", "unet:width=16", "parameter-server:servers=2") == (
        "epochs-unet-width-16-parameter-server-servers-2"
    )


def test_a_bar_is_faster_or_slower_only_beyond_the_noise() -> None:
    chart = BarChart(10, {1: 1.0, 2: 0.8, 3: 1.3, 4: 0.9}, {1: 0.1, 2: 0.1, 3: 0.1, 4: 0.1})
    assert [chart.tone(count) for count in (1, 2, 3, 4)] == ["one", "faster", "slower", "open"]
    assert BarChart(10, {1: 1.0, 2: 0.1}, {2: math.inf}).tone(2) == "open"
    assert BarChart(10, {2: 1.0, 4: 0.1}).tone(4) == "one"
