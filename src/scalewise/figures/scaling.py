"""The same global batch on more devices beside the same batch on each: two meanings of 'batch', two answers."""

from __future__ import annotations

from matplotlib.figure import Figure

from scalewise.figures.lines import chosen, draw_lines, explained
from scalewise.figures.style import FAINT, new_figure, styled
from scalewise.findings.cell import Series
from scalewise.findings.scaling import fixed_global, fixed_per_device

DASHED = "Dashed: as many times the samples per second as there are devices"


@styled
def draw_scaling(series: Series) -> Figure | None:
    """None where either way was not measured."""
    same_global, same_each = fixed_global(series), fixed_per_device(series)
    if not same_global or not same_each:
        return None
    figure, panels = new_figure(
        f"{series.workload} under {series.strategy}: two ways to add devices",
        series.machine,
        columns=2,
        width=8.6,
        when=series.when,
        subtitle=explained(
            "Dashed: as many times the samples per second as there are devices", same_global + same_each
        ),
    )
    batches = {each.batch for each in same_each}
    shared = [each for each in same_global if each.batch in batches] or same_global
    kinds = (("the same global batch, shared", shared), ("the same batch on each device", same_each))
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
    panels[0].set_ylabel("throughput over one device")
    return figure
