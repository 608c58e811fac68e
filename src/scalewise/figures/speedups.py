"""Speed-up and efficiency over the number of devices, a line per batch."""

from __future__ import annotations

from matplotlib.figure import Figure

from scalewise.figures.lines import chosen, draw_lines, explained
from scalewise.figures.style import FAINT, new_figure, styled
from scalewise.findings.cell import Series
from scalewise.findings.scaling import fixed_global
from scalewise.findings.speedup import best_speedups


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
        subtitle=explained(subtitle, scalings),
    )
    counts = series.device_counts
    left.plot(counts, counts, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
    left.annotate(
        "ideal", (counts[-1], counts[-1]), (9, 0), textcoords="offset points", va="center", fontsize=8.5, color=FAINT
    )
    left.axhline(1, color=FAINT, linewidth=1)
    right.axhline(1, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
    reach, best_use = draw_lines(left, scalings), draw_lines(right, scalings, per_device=True)
    for axes, highest in ((left, max(reach, counts[-1])), (right, best_use)):
        axes.set_xticks(counts)
        axes.set_xlabel("devices")
        axes.set_ylim(0, highest * 1.05)
        axes.grid(axis="y")
    left.set_title("speed-up")
    right.set_title("efficiency")
    right.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", title="global batch", alignment="left")
    return figure
