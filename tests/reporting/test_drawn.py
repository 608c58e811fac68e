"""Figures are readable files with the expected axes, labels, lines and bars."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.text import Annotation
from PIL import Image

from scalewise.published.stevens import stevens_environment, stevens_measurements
from scalewise.reporting.figure_style import number_text
from scalewise.reporting.figures import draw_bars, draw_epochs, draw_scaling, draw_speedups
from scalewise.reporting.report import draw_all, draw_all_phases
from scalewise.reporting.series import Cell, Series, series_of
from scalewise.reporting.step_figures import draw_phases, draw_transfer

PHASES = {"forward": 0.1, "backward": 0.2}


@pytest.fixture(scope="module")
def study() -> dict[str, Series]:
    environment = stevens_environment()
    return {series.workload: series for series in series_of(stevens_measurements(), {environment.id: environment})}


def test_the_line_chart_has_a_line_per_gpu_count_and_is_labelled_with_machine_and_year(
    study: dict[str, Series],
) -> None:
    figure = draw_epochs(study["conv"])
    assert figure
    [axes] = figure.axes
    lines = [line for line in axes.lines if str(line.get_label()).endswith(("device", "devices"))]
    assert [line.get_label() for line in lines] == ["1 device", "2 devices", "3 devices", "4 devices"]
    assert [len(line.get_xdata()) for line in lines] == [12] * 4  # type: ignore[arg-type]
    assert list(lines[3].get_ydata())[3] == 0.8539  # type: ignore[arg-type]
    assert figure.get_supxlabel() == "4x GTX 1080 Ti, 2020"
    assert axes.get_ylabel() == "seconds per epoch"


def test_bars_are_four_panels_and_slower_bars_have_another_colour(study: dict[str, Series]) -> None:
    linear, conv = draw_bars(study["linear"]), draw_bars(study["conv"])
    assert linear
    assert conv
    assert [axes.get_title(loc="left") for axes in linear.axes] == ["batch 20", "batch 50", "batch 100", "batch 300"]
    assert [round(bar.get_height(), 4) for bar in linear.axes[0].patches] == [0.5914, 4.561, 4.6384, 4.6626]  # type: ignore[attr-defined]
    assert linear.axes[0].patches[1].get_facecolor() != conv.axes[0].patches[1].get_facecolor()


def test_nothing_is_drawn_without_comparable_cells() -> None:
    lone = Series("m", "single", (Cell(1, 10, 100, 1.0),))
    assert [draw(lone) for draw in (draw_epochs, draw_bars, draw_speedups, draw_scaling, draw_transfer)] == [None] * 5
    assert draw_phases([lone]) is None


def test_no_line_is_drawn_through_fewer_than_three_amounts_of_transfer() -> None:
    cells = [Cell(2, batch, 100, 1.0, bytes_per_step=1000) for batch in (10, 20, 40)]
    drawn = [draw_transfer(Series("m", "mirrored", tuple(cells[:count]))) is not None for count in (1, 2, 3)]
    assert drawn == [False, False, True]


def transfer_legend(epochs: tuple[float, ...], bytes_per_step: int) -> str:
    """Return the last legend entry of the transfer figure of cells at batch 10, 20 and 40."""
    timed = dict(zip((10, 20, 40), epochs, strict=True))
    cells = [Cell(2, batch, 4000, seconds, bytes_per_step=bytes_per_step) for batch, seconds in timed.items()]
    figure = draw_transfer(Series("m", "mirrored", tuple(cells)))
    assert figure
    legend = figure.axes[0].get_legend()
    assert legend
    assert ("R²" in legend.get_texts()[-1].get_text()) == (len(figure.axes[0].lines[-1].get_xdata()) == 2)  # type: ignore[arg-type]
    return legend.get_texts()[-1].get_text()


def test_the_transfer_fit_is_labelled_in_readable_units() -> None:
    assert transfer_legend((102.0, 101.0, 100.5), 10**9).startswith("100 s + bytes / 200 GB/s,  R² = ")
    assert transfer_legend((0.042, 0.022, 0.012), 10**6).startswith("2 ms + bytes / 10 GB/s,  R² = ")


@pytest.mark.parametrize("epochs", [(101.0, 90.0, 100.0), (2.0, 3.0, 4.0), (8.0, 3.0, 1.0)])
def test_a_poor_transfer_fit_is_not_drawn(epochs: tuple[float, ...]) -> None:
    """The points are scattered, fall with the bytes sent, or imply a negative time at zero bytes."""
    assert transfer_legend(epochs, 10**9) == "no linear fit"


def test_only_uncertain_timings_have_whiskers() -> None:
    def drawn(uncertainty: float) -> tuple[int, str]:
        cells = [Cell(devices, batch, 100, 1.0, uncertainty) for devices in (1, 2) for batch in (10, 20)]
        series = Series("m", "mirrored", tuple(cells))
        lines, bars = draw_epochs(series), draw_bars(series)
        assert lines
        assert bars
        legend = lines.axes[0].get_legend()
        assert legend
        return sum(len(axes.collections) for axes in bars.axes), legend.get_texts()[-1].get_text()

    assert drawn(0.3) == (2, "95% interval")
    assert drawn(0.01) == (0, "2 devices")


def test_whiskers_of_speedups_stay_inside_the_figure_and_are_explained() -> None:
    cells = [Cell(devices, batch, 100, 2.0 / devices, 0.3) for devices in (1, 2) for batch in (10, 20)]
    series = Series("m", "mirrored", tuple(cells))
    for figure, start in ((draw_speedups(series, "At best 2x"), "At best 2x. "), (draw_scaling(series), "devices. ")):
        assert figure
        assert all(axes.collections for axes in figure.axes)
        assert figure.axes[0].get_ylim()[1] > 2 * (1 + 0.3 * 2**0.5)
        subtitles = [annotation.get_text() for annotation in figure.findobj(Annotation)]
        assert any(f"{start}Whiskers: 95% intervals" in text for text in subtitles)


def test_large_numbers_are_written_as_integers() -> None:
    assert [number_text(value) for value in (0.51623, 64.52, 999.4, 4123.4)] == ["0.516", "64.5", "999", "4,123"]


@pytest.mark.parametrize("epochs", [(3.0, 2.0, 1.5), (4.0, 1.0, 3.0), (2.0, 0.9, 0.3)])
def test_no_transfer_is_cut_off_by_the_top_of_its_axes(epochs: tuple[float, ...]) -> None:
    timed = dict(zip((10, 20, 40), epochs, strict=True))
    cells = [Cell(2, batch, 100, seconds, bytes_per_step=1000) for batch, seconds in timed.items()]
    figure = draw_transfer(Series("m", "mirrored", tuple(cells)))
    assert figure
    [axes] = figure.axes
    assert axes.get_ylim()[0] == 0
    assert axes.get_ylim()[1] >= 1.05 * max(epochs)


def test_figures_are_written_as_png_and_svg(tmp_path: Path) -> None:
    cells = [
        Cell(devices, batch, 100, 1.0 / devices, bytes_per_step=1000 * (devices - 1), phases=PHASES)
        for devices in (1, 2)
        for batch in (10, 20, 40)
    ]
    series = [Series("m:a=1", "mirrored", tuple(cells), "a machine", "2026-11-15")]
    paths = draw_all(series, tmp_path) + draw_all_phases(series, tmp_path)
    names = ["epochs-m-a-1-mirrored", "bars-m-a-1-mirrored", "speedups-m-a-1-mirrored", "scaling-m-a-1-mirrored"]
    names += ["transfer-m-a-1-mirrored", "phases-m-a-1"]
    assert [path.name for path in paths] == [f"{name}.{kind}" for name in names for kind in ("png", "svg")]
    for path in paths:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert min(image.size) > 500
        else:
            assert "a machine, 2026-11-15" in path.read_text()
