"""One look for all figures: readable in print and on a dark page, colour-blind safe, labelled with machine and date."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, told apart by everybody; no yellow, which vanishes on white."""
MARKERS = ("o", "s", "^", "D", "v", "P")
INK, PAPER, FAINT = "#1F2328", "#FFFFFF", "#6E7781"
_SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "grid.color": "#D8DEE4",
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "figure.facecolor": PAPER,  # a page of its own: dark ink would be lost on a dark page
    "axes.facecolor": PAPER,
    "svg.fonttype": "none",
}


def new_figure(
    title: str, machine: str, *, rows: int = 1, columns: int = 1, width: float = 7.0, height: float = 4.2
) -> tuple[Figure, list[Axes]]:
    """A figure with its title above and what it was measured on below; sizes in inches."""
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
        figure.supxlabel(f"{machine}, {date.today().isoformat()}", x=0.99, ha="right", fontsize=8, color=FAINT)
    return figure, list(axes.flat)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """As PNG and SVG."""
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    with matplotlib.rc_context(_SETTINGS):
        for path in paths:
            figure.savefig(path, dpi=160)
    return paths
