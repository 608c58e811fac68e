"""Shared style of all figures."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from scalewise.core.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes


matplotlib.use("Agg")


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe-Ito palette, safe for colour-blind readers, without yellow, which is invisible on white."""
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
"""Ratio of the largest to the smallest value above which an axis is logarithmic."""
TICKS_APART = 0.05
"""Smallest distance between tick labels of three digits, as a fraction of the axis."""
WORTH_SHOWING = 0.02
"""Smallest relative uncertainty that is drawn as a whisker."""

styled = matplotlib.rc_context(_SETTINGS)
"""Decorator of functions that draw: legends and lines read the settings when they are created."""


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
    """Create a figure with a title above the plots and the machine and date below; sizes are in inches.

    `when` is the day of the measurements (default: today).
    """
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        lines = f"{title}\n " if subtitle else title
        heading = figure.suptitle(lines, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK, linespacing=1.35)
        if subtitle:
            below = Annotation(subtitle, (0, 0), xycoords=heading, va="bottom", fontsize=9.5, color=FAINT)
            below.set_in_layout(False)  # the empty second line of the title reserves its space
            figure.add_artist(below)
        label = ", ".join(filter(None, (machine, date.today().isoformat() if when is None else when)))
        figure.supxlabel(label, x=0.99, ha="right", fontsize=8, color=FAINT)
    return figure, list(axes.flat)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write the figure as PNG and SVG, each atomically."""
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    with matplotlib.rc_context(_SETTINGS):
        write_atomically(paths[0], partial(figure.savefig, format="png", dpi=160))
        figure.set_layout_engine("none")  # reuse the layout: computing it takes most of the time
        write_atomically(paths[1], partial(figure.savefig, format="svg", metadata={"Date": None}))
    return paths


def file_name(*parts: str) -> str:
    """Join parts to a file name: 'epochs', 'linear, ring:a=1' -> 'epochs-linear-ring-a-1'."""
    return "-".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in parts if part)


def device_look(devices: int, counts: Sequence[int]) -> dict[str, Any]:
    """Return the colour, marker and label of a device count, identical in all figures; one device is black."""
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
    """Make the batch axis logarithmic, with as many ticks at measured batch sizes as fit beside each other."""
    axes.set_xscale("log")
    ticks = sorted(set(batches))
    apart = (ticks[-1] / ticks[0]) ** (TICKS_APART * columns)
    labelled = [ticks[-1]]
    for tick in reversed(ticks):
        if labelled[-1] / tick >= apart > 1:
            labelled.append(tick)
    axes.xaxis.set_major_locator(FixedLocator(labelled))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def seconds_axis(axes: Axes, seconds: Sequence[float]) -> None:
    """Start the seconds axis at zero, or make it logarithmic if the values span more than a factor of `STEEP`."""
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
    """Format with three significant digits, large numbers as integers: '0.516', '64.5', '4,123'."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def worth_showing(part: float) -> bool:
    """Return whether a relative uncertainty is drawn: not if it is small, nor if it is unknown (infinite)."""
    return WORTH_SHOWING < part < math.inf


def whiskers(axes: Axes, points: Sequence[tuple[float, float, float]], colour: str, label: str = "") -> bool:
    """Draw error bars at points (x, y, relative uncertainty); return whether any was large enough to draw."""
    wide = [(x, y, y * part) for x, y, part in points if worth_showing(part)]
    if wide:
        x, y, reach = zip(*wide, strict=True)
        axes.errorbar(x, y, reach, fmt="none", ecolor=colour, elinewidth=1.1, capsize=3, label=label, zorder=2.5)
    return bool(wide)


def legend_above(axes: Axes, columns: int = 6, **more: Any) -> None:
    """Draw the legend as a row between the title and the plot, so that it covers no data."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=columns,
        borderaxespad=0.2,
        handlelength=1.6,
        columnspacing=1.4,
        **more,
    )
