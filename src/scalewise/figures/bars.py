"""Seconds per epoch at one batch, a bar per device count: the study's figures 3 to 10."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from scalewise.figures.style import (
    COLOURS,
    FAINT,
    INK,
    PAPER,
    RULE,
    new_figure,
    number_text,
    styled,
    whiskers,
    worth_showing,
)
from scalewise.findings.cell import Cell, Series
from scalewise.findings.speedup import TELLABLE

STUDY_BATCHES = (20, 50, 100, 300)
MOST_CHARTS = 4
WHISKER = "#8A939C"
"""Seen on black bars and on the page."""
Tone = Literal["one", "faster", "slower", "open"]
TONES: dict[Tone, str] = {"one": INK, "faster": COLOURS[0], "slower": COLOURS[1], "open": "#A9B1BA"}
MEANINGS: dict[Tone, str] = {
    "one": "Black: one device",
    "faster": "Blue: faster",
    "slower": "Orange: slower, it chokes",
    "open": "Grey: cannot be told",
}


@dataclass(frozen=True)
class BarChart:
    """One batch: seconds per epoch by device count, and what the timing leaves open as a fraction."""

    batch: int
    seconds: dict[int, float]
    uncertainty: dict[int, float] = field(default_factory=dict)

    def tone(self, devices: int) -> Tone:
        """Beside one device, as far as the timings tell."""
        if devices == 1 or 1 not in self.seconds:
            return "one"
        one, several = (
            Cell(count, self.batch, self.batch, self.seconds[count], self.uncertainty.get(count, 0.0))
            for count in (1, devices)
        )
        if several.surely_slower_than(one, TELLABLE):
            return "slower"
        return "faster" if one.surely_slower_than(several, TELLABLE) else "open"


def bar_charts(series: Series) -> list[BarChart]:
    """At the study's four batches, or as many of the batches that several device counts share."""
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
    """None without a batch that several device counts share. Bars above one device's, marked by a line, choke."""
    charts = bar_charts(series)
    if not charts:
        return None
    whiskered = any(worth_showing(part) for chart in charts for part in chart.uncertainty.values())
    seen = {chart.tone(count) for chart in charts for count in chart.seconds}
    figure, panels = new_figure(
        f"{series.workload} under {series.strategy}: seconds per epoch by devices",
        series.machine,
        columns=len(charts),
        width=max(6.6, 2.3 * len(charts)),
        height=3.7,
        when=series.when,
        subtitle=f"{'. '.join(MEANINGS[tone] for tone in MEANINGS if tone in seen)}."
        + (" Whiskers: 95 % intervals." if whiskered else ""),
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
