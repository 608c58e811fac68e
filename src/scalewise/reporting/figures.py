"""Figures of epoch times, speedups and scaling."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from scalewise.reporting.epoch_laws import bounce, inverse_batch_law
from scalewise.reporting.figure_style import (
    COLOURS,
    FAINT,
    INK,
    MARKERS,
    PAPER,
    RULE,
    batch_axis,
    device_look,
    legend_above,
    new_figure,
    number_text,
    seconds_axis,
    styled,
    whiskers,
    worth_showing,
)
from scalewise.reporting.series import Cell, Series
from scalewise.reporting.speedups import SMALLEST_DIFFERENCE, Scaling, best_speedups, fixed_global, fixed_per_device

if TYPE_CHECKING:
    from matplotlib.axes import Axes


STUDY_BATCHES = (20, 50, 100, 300)
MOST_CHARTS = 4
WHISKER = "#8A939C"
"""Colour of whiskers, visible on black bars and on the page."""
Tone = Literal["one", "faster", "slower", "open"]
TONES: dict[Tone, str] = {"one": INK, "faster": COLOURS[0], "slower": COLOURS[1], "open": "#A9B1BA"}
MEANINGS: dict[Tone, str] = {
    "one": "Black: one device",
    "faster": "Blue: faster",
    "slower": "Orange: slower (choke)",
    "open": "Grey: uncertain",
}


@dataclass(frozen=True)
class BarChart:
    """Seconds per epoch by device count at one batch size, with the relative uncertainty of each."""

    batch: int
    seconds: dict[int, float]
    uncertainty: dict[int, float] = field(default_factory=dict)

    def tone(self, devices: int) -> Tone:
        """Compare a device count with one device: 'open' if the intervals leave the answer uncertain."""
        if devices == 1 or 1 not in self.seconds:
            return "one"
        one, several = (
            Cell(count, self.batch, self.batch, self.seconds[count], self.uncertainty.get(count, 0.0))
            for count in (1, devices)
        )
        if several.surely_slower_than(one, SMALLEST_DIFFERENCE):
            return "slower"
        return "faster" if one.surely_slower_than(several, SMALLEST_DIFFERENCE) else "open"


def bar_charts(series: Series) -> list[BarChart]:
    """Return the charts of the study's four batches or, without them, of up to four batches with several bars."""
    charts = []
    for batch in series.batches:
        cells = {count: cell for count in series.device_counts if (cell := series.at(count, batch))}
        if len(cells) > 1:
            seconds = {count: cell.epoch_seconds for count, cell in cells.items()}
            charts.append(BarChart(batch, seconds, {count: cell.uncertainty for count, cell in cells.items()}))
    chosen = [chart for chart in charts if chart.batch in STUDY_BATCHES]
    if len(chosen) == MOST_CHARTS or len(charts) <= MOST_CHARTS:
        return chosen if len(chosen) == MOST_CHARTS else charts
    step = (len(charts) - 1) / (MOST_CHARTS - 1)
    return [charts[round(number * step)] for number in range(MOST_CHARTS)]


@styled
def draw_bars(series: Series) -> Figure | None:
    """Draw a bar chart per batch, with a dashed line at the time of one device.

    Return None if no batch was timed at several device counts.
    """
    charts = bar_charts(series)
    if not charts:
        return None
    whiskered = any(worth_showing(part) for chart in charts for part in chart.uncertainty.values())
    tones = {chart.tone(count) for chart in charts for count in chart.seconds}
    figure, panels = new_figure(
        f"{series.workload}, {series.strategy}: epoch time by number of devices",
        series.machine,
        columns=len(charts),
        width=max(6.6, 2.3 * len(charts)),
        height=3.7,
        when=series.when,
        subtitle=f"{'. '.join(MEANINGS[tone] for tone in MEANINGS if tone in tones)}."
        + (" Whiskers: 95% intervals." if whiskered else ""),
    )
    for axes, chart in zip(panels, charts, strict=True):
        names = [str(count) for count in chart.seconds]
        one = chart.seconds.get(1)
        colours = [TONES[chart.tone(count)] for count in chart.seconds]
        axes.bar(names, list(chart.seconds.values()), color=colours, width=0.72)
        parts = {count: chart.uncertainty.get(count, 0.0) for count in chart.seconds}
        tops = {
            count: seconds * (1 + (min(1.0, parts[count]) if worth_showing(parts[count]) else 0.0))
            for count, seconds in chart.seconds.items()
        }
        points = [(place, seconds, parts[count]) for place, (count, seconds) in enumerate(chart.seconds.items())]
        whiskers(axes, points, WHISKER)
        for place, (count, seconds) in enumerate(chart.seconds.items()):
            number = axes.annotate(
                number_text(seconds),
                (place, tops[count]),
                (0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=8.5,
            )
            number.set_path_effects([withStroke(linewidth=2.5, foreground=PAPER)])
        if one:
            axes.axhline(one, color=FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        axes.set_title(f"batch {chart.batch}")
        axes.set_ylim(0, max(tops.values()) * 1.12)
        axes.set_xlabel("devices")
        axes.spines["left"].set_color(RULE)
        axes.tick_params(axis="x", length=0)
        axes.grid(axis="y")
    panels[0].set_ylabel("seconds per epoch")
    return figure


@styled
def draw_epochs(series: Series, subtitle: str = "") -> Figure | None:
    """Plot the epoch time over the batch size, one line per device count; None with a single batch size.

    Device counts that follow the inverse-batch law are drawn as points with the fitted curve.
    """
    if len(series.batches) < 2:
        return None
    figure, [axes] = new_figure(
        f"{series.workload}, {series.strategy}: epoch time by batch size",
        series.machine,
        when=series.when,
        subtitle=subtitle,
    )
    law = inverse_batch_law(series)
    fits = {fit.devices: fit for fit in law.holding} if law else {}
    uncertain = False
    for devices in series.device_counts:
        cells = series.line(devices)
        look = device_look(devices, series.device_counts)
        axes.plot(
            [cell.batch for cell in cells],
            [cell.epoch_seconds for cell in cells],
            **look,
            linestyle="none" if devices in fits else "-",
            zorder=3,
        )
        points = [(cell.batch, cell.epoch_seconds, cell.uncertainty) for cell in cells]
        uncertain |= whiskers(axes, points, look["color"])
        if devices in fits:
            batches = np.geomspace(cells[0].batch, cells[-1].batch, 200)
            epochs = [fits[devices].epoch_seconds(cells[0].samples / batch) for batch in batches]
            axes.plot(batches, epochs, color=look["color"], linewidth=1.4, alpha=0.8)
    if fits:
        axes.plot([], [], color=FAINT, linewidth=1.4, label="fit: floor + steps × constant")
    if uncertain:
        axes.errorbar([], [], [], fmt="none", ecolor=FAINT, elinewidth=1.1, capsize=3, label="95% interval")
    seconds_axis(axes, [cell.epoch_seconds * (1 + min(1.0, whisker_length(cell))) for cell in series.cells])
    _draw_bounce_rings(axes, series)
    batch_axis(axes, series.batches)
    axes.set_xlabel("global batch size")
    legend_above(axes)
    return figure


def whisker_length(cell: Cell) -> float:
    """Return the length of the cell's whisker as a fraction of its epoch time, 0 if none is drawn."""
    return cell.uncertainty if worth_showing(cell.uncertainty) else 0.0


def _draw_bounce_rings(axes: Axes, series: Series) -> None:
    """Draw a ring around the last cell before time per sample jumps, labelled with its batch per device."""
    finding = bounce(series)
    if finding is None or finding.above is None:
        return
    ring: dict[str, Any] = {"marker": "o", "fillstyle": "none", "markeredgecolor": FAINT, "linestyle": "none"}
    for jump in finding.jumps:
        low = next(cell for cell in series.line(jump.devices) if cell.batch_per_device == jump.last_low)
        axes.plot(low.batch, low.epoch_seconds, **ring, markersize=14)
        axes.annotate(
            f"{jump.last_low}/device",
            (low.batch, low.epoch_seconds),
            (0, 17 if low.batch == series.batches[0] else -12),
            textcoords="offset points",
            ha="center",
            va="bottom" if low.batch == series.batches[0] else "top",
            fontsize=8,
            color=FAINT,
        )
    axes.plot([], [], **ring, markersize=9, label="last batch before the jump")


MOST_LINES = 6
APART = 0.025
"""Horizontal distance between the whiskers of neighbouring lines, in device counts, so that they do not overlap."""


def chosen(scalings: list[Scaling], wanted: Collection[int] = ()) -> list[Scaling]:
    """Choose up to `MOST_LINES` lines: the wanted batches, the smallest, the largest, and some in between."""
    if len(scalings) <= MOST_LINES:
        return scalings
    batches = [scaling.batch for scaling in scalings]
    shown = {*wanted, batches[0], batches[-1]} & set(batches)
    while len(shown) < MOST_LINES:
        places_shown = [batches.index(batch) for batch in shown]
        shown.add(max(batches, key=lambda batch: min(abs(batches.index(batch) - place) for place in places_shown)))
    return [scaling for scaling in scalings if scaling.batch in shown]


def uncertain(scalings: Sequence[Scaling]) -> bool:
    """Return whether there is a whisker to draw."""
    return any(worth_showing(part) for scaling in scalings for part in scaling.uncertainty.values())


def explained(subtitle: str, scalings: Sequence[Scaling]) -> str:
    """Add an explanation of the whiskers to a subtitle if there are any."""
    sentences = [subtitle.removesuffix("."), *(["Whiskers: 95% intervals"] if uncertain(scalings) else [])]
    return ". ".join(filter(None, sentences))


def places(scalings: Sequence[Scaling]) -> list[dict[int, float]]:
    """Return the x position of each device count per line: shifted apart if there are whiskers, except at 1 device."""
    apart = APART if uncertain(scalings) else 0.0
    return [
        {count: count + (apart * (number - (len(scalings) - 1) / 2) if count > 1 else 0.0) for count in line.speedups}
        for number, line in enumerate(scalings)
    ]


def draw_lines(axes: Axes, scalings: Sequence[Scaling], per_device: bool = False) -> float:
    """Draw speed-ups, or efficiencies if `per_device`; return the highest value, whiskers included."""
    highest = 1.0
    for number, (scaling, place) in enumerate(zip(scalings, places(scalings), strict=True)):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        values = efficiencies(scaling) if per_device else scaling.speedups
        axes.plot(
            [place[count] for count in values],
            list(values.values()),
            color=colour,
            marker=marker,
            label=f"{scaling.batch}",
            zorder=3,
        )
        uncertainties = {count: scaling.uncertainty.get(count, 0.0) for count in values}
        whiskers(axes, [(place[count], values[count], uncertainties[count]) for count in values], colour)
        # Whiskers longer than their value extend beyond the figure.
        highest = max(
            highest, *(value * (1 + _whisker_length(uncertainties[count])) for count, value in values.items())
        )
    return highest


def efficiencies(scaling: Scaling) -> dict[int, float]:
    """Return the scaling efficiency by device count: speed-up divided by devices."""
    return {count: speedup / count for count, speedup in scaling.speedups.items()}


def _whisker_length(part: float) -> float:
    return part if worth_showing(part) and part < 1 else 0.0


IDEAL_LINE = "Dashed: ideal, throughput grows with the number of devices"


@styled
def draw_scaling(series: Series) -> Figure | None:
    """Draw strong and weak scaling side by side; None if either was not measured."""
    strong, weak = fixed_global(series), fixed_per_device(series)
    if not strong or not weak:
        return None
    figure, panels = new_figure(
        f"{series.workload}, {series.strategy}: strong and weak scaling",
        series.machine,
        columns=2,
        width=8.6,
        when=series.when,
        subtitle=explained(IDEAL_LINE, strong + weak),
    )
    batches = {scaling.batch for scaling in weak}
    shared = [scaling for scaling in strong if scaling.batch in batches] or strong
    kinds = (("strong scaling: fixed global batch", shared), ("weak scaling: fixed batch per device", weak))
    highest = 1.0
    for axes, (title, scalings) in zip(panels, kinds, strict=True):
        counts = series.device_counts
        axes.plot(counts, counts, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
        axes.axhline(1, color=FAINT, linewidth=1)
        highest = max(highest, draw_lines(axes, chosen(scalings)))
        axes.set_title(title)
        axes.set_xticks(counts)
        axes.set_xlabel("devices")
        axes.grid(axis="y")
        axes.legend(
            title="global batch" if axes is panels[0] else "batch per device", alignment="left", loc="upper left"
        )
    for axes in panels:
        axes.set_ylim(0, max(highest, series.device_counts[-1]) * 1.05)
    panels[0].set_ylabel("throughput relative to one device")
    return figure


@styled
def draw_speedups(series: Series, subtitle: str = "") -> Figure | None:
    """Draw speed-up and efficiency by device count; None if no batch was timed on one and on several devices."""
    best = best_speedups(series)
    scalings = chosen(fixed_global(series), [speedup.batch for speedup in best.best] if best else ())
    if not scalings:
        return None
    figure, [left, right] = new_figure(
        f"{series.workload}, {series.strategy}: speed-up over one device",
        series.machine,
        columns=2,
        width=8.6,
        when=series.when,
        subtitle=explained(subtitle, scalings),
    )
    counts = series.device_counts
    left.plot(counts, counts, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
    left.annotate(
        "ideal", (counts[-1], counts[-1]), (9, 0), textcoords="offset points", va="center", fontsize=8.5, color=FAINT
    )
    left.axhline(1, color=FAINT, linewidth=1)
    right.axhline(1, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
    highest_speedup, highest_efficiency = draw_lines(left, scalings), draw_lines(right, scalings, per_device=True)
    for axes, highest in ((left, max(highest_speedup, counts[-1])), (right, highest_efficiency)):
        axes.set_xticks(counts)
        axes.set_xlabel("devices")
        axes.set_ylim(0, highest * 1.05)
        axes.grid(axis="y")
    left.set_title("speed-up")
    right.set_title("efficiency")
    right.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", title="global batch", alignment="left")
    return figure
