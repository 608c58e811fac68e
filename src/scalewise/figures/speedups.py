"""Speed-up and efficiency over the number of devices, a line per batch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from matplotlib.figure import Figure

from scalewise.figures.style import COLOURS, FAINT, MARKERS, new_figure, styled
from scalewise.findings.cell import Series
from scalewise.findings.scaling import Scaling, fixed_global
from scalewise.findings.speedup import best_speedups

MOST_LINES = 6


def chosen(scalings: list[Scaling], wanted: Collection[int] = ()) -> list[Scaling]:
    """As many as can be told apart: the wanted batches, the smallest, the largest, and some between."""
    if len(scalings) <= MOST_LINES:
        return scalings
    batches = [scaling.batch for scaling in scalings]
    kept = {*wanted, batches[0], batches[-1]} & set(batches)
    while len(kept) < MOST_LINES:
        kept.add(max(batches, key=lambda batch: min(abs(batches.index(batch) - batches.index(each)) for each in kept)))
    return [scaling for scaling in scalings if scaling.batch in kept]


def efficiencies(scaling: Scaling) -> dict[int, float]:
    """The part of every device that is put to use."""
    return {count: speedup / count for count, speedup in scaling.speedups.items()}


@styled
def draw_speedups(series: Series, subtitle: str = "") -> Figure | None:
    """None where no batch was timed both on one device and on several."""
    best = best_speedups(series)
    scalings = chosen(fixed_global(series), [each.batch for each in best.best] if best else ())
    if not scalings:
        return None
    figure, [left, right] = new_figure(
        f"{series.workload} under {series.strategy}: speed-up over one device",
        series.machine,
        columns=2,
        width=8.6,
        when=series.when,
        subtitle=subtitle,
    )
    counts = series.device_counts
    left.plot(counts, counts, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
    left.annotate(
        "ideal", (counts[-1], counts[-1]), (9, 0), textcoords="offset points", va="center", fontsize=8.5, color=FAINT
    )
    left.axhline(1, color=FAINT, linewidth=1)
    right.axhline(1, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
    for number, scaling in enumerate(scalings):
        look: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        for axes, values in ((left, scaling.speedups), (right, efficiencies(scaling))):
            axes.plot(list(values), list(values.values()), **look, label=f"{scaling.batch}")
    most = max(max(scaling.speedups.values()) for scaling in scalings)
    best_use = max(max(efficiencies(scaling).values()) for scaling in scalings)
    for axes, highest in ((left, max(most, counts[-1])), (right, best_use)):
        axes.set_xticks(counts)
        axes.set_xlabel("devices")
        axes.set_ylim(0, highest * 1.05)
        axes.grid(axis="y")
    left.set_title("speed-up")
    right.set_title("efficiency")
    right.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", title="global batch", alignment="left")
    return figure
