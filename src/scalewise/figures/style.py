"""One look for all figures: readable in print and on a dark page, colour-blind safe, labelled with machine and date."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from scalewise.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, told apart by everybody; no yellow, which vanishes on white."""
MARKERS = ("o", "s", "^", "D", "v", "p")
INK, PAPER, FAINT, RULE = "#1F2328", "#FFFFFF", "#6E7781", "#D8DEE4"
_SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "legend.fontsize": 9,
    "legend.title_fontsize": 9,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "lines.markersize": 6.0,
    "lines.markeredgecolor": PAPER,
    "lines.markeredgewidth": 0.7,
    "figure.facecolor": PAPER,  # a page of its own: dark ink would be lost on a dark page
    "axes.facecolor": PAPER,
    "svg.fonttype": "none",
    "svg.hashsalt": "scalewise",  # the same numbers give the same file
}

STEEP = 6
"""Slowest over fastest from which on an axis is logarithmic."""
TICKS_APART = 0.05
"""Least distance between labels of three digits, as a part of the axis."""
WORTH_SHOWING = 0.02
"""Of a value: what is known better than this has no whisker."""

styled = matplotlib.rc_context(_SETTINGS)
"""Decorates functions that draw: legends and lines take their look while they are made."""


def new_figure(
    title: str,
    machine: str,
    *,
    rows: int = 1,
    columns: int = 1,
    width: float = 7.6,
    height: float = 4.4,
    when: str | None = None,
    subtitle: str = "",
) -> tuple[Figure, list[Axes]]:
    """A figure with its title above and what it was measured on below; sizes in inches.

    `when` is the day of the measurements, today if not given. The subtitle says what there is to see.
    """
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        lines = f"{title}\n " if subtitle else title
        heading = figure.suptitle(lines, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK, linespacing=1.35)
        if subtitle:
            below = Annotation(subtitle, (0, 0), xycoords=heading, va="bottom", fontsize=9.5, color=FAINT)
            below.set_in_layout(False)  # the empty second line of the title keeps its place
            figure.add_artist(below)
        label = ", ".join(filter(None, (machine, date.today().isoformat() if when is None else when)))
        figure.supxlabel(label, x=0.99, ha="right", fontsize=8, color=FAINT)
    return figure, list(axes.flat)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """As PNG and SVG, each whole or not at all."""
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    with matplotlib.rc_context(_SETTINGS):
        write_atomically(paths[0], partial(figure.savefig, format="png", dpi=160))
        figure.set_layout_engine("none")  # found once, the layout is kept: finding it is most of the time
        write_atomically(paths[1], partial(figure.savefig, format="svg", metadata={"Date": None}))
    return paths


def file_name(*parts: str) -> str:
    """'epochs', 'linear, data-parallel:engine=threads' -> 'epochs-linear-data-parallel-engine-threads'."""
    return "-".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in parts if part)


def device_look(devices: int, counts: Sequence[int]) -> dict[str, Any]:
    """One device is the ink-coloured baseline; every other count has its colour and marker, in all figures."""
    several = sorted(count for count in counts if count > 1)
    number = several.index(devices) if devices > 1 else 0
    return {
        "color": INK if devices == 1 else COLOURS[number % len(COLOURS)],
        "marker": "o" if devices == 1 else MARKERS[(number + 1) % len(MARKERS)],
        "markersize": 6.5
        if devices == 1
        else max(8.6 - 1.5 * number, 4.5),  # equal counts stay visible on top of each other
        "label": f"{devices} device{'s' if devices > 1 else ''}",
    }


def batch_axis(axes: Axes, batches: Sequence[int], columns: int = 1) -> None:
    """Logarithmic, with ticks where cells are, as many as can be read in a figure of so many columns."""
    axes.set_xscale("log")
    ticks = sorted(set(batches))
    apart = (ticks[-1] / ticks[0]) ** (TICKS_APART * columns)
    shown = [ticks[-1]]
    for tick in reversed(ticks):
        if shown[-1] / tick >= apart > 1:
            shown.append(tick)
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def seconds_axis(axes: Axes, seconds: Sequence[float]) -> None:
    """From zero, or logarithmic where the slowest would flatten the rest."""
    axes.set_ylabel("seconds per epoch")
    axes.grid(axis="y")
    if max(seconds) <= STEEP * min(seconds):
        axes.set_ylim(0, max(seconds) * 1.08)
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def number_text(value: float) -> str:
    """Three digits, or all of a large number's: '0.516', '64.5', '4,120'."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def worth_showing(part: float) -> bool:
    """What is known well enough has no whisker, and of what was timed once there is none."""
    return WORTH_SHOWING < part < math.inf


def whiskers(axes: Axes, points: Sequence[tuple[float, float, float]], colour: str, label: str = "") -> bool:
    """What timings leave open: x, y and a fraction of y for each point. Whether any is wide enough to be seen."""
    wide = [(x, y, y * part) for x, y, part in points if worth_showing(part)]
    if wide:
        x, y, reach = zip(*wide, strict=True)
        axes.errorbar(x, y, reach, fmt="none", ecolor=colour, elinewidth=1.1, capsize=3, label=label, zorder=2.5)
    return bool(wide)


def legend_above(axes: Axes, columns: int = 6, **more: Any) -> None:
    """A row between the title and the plot, where no data can be."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=columns,
        borderaxespad=0.2,
        handlelength=1.6,
        columnspacing=1.4,
        **more,
    )
