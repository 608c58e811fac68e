"""Speed-ups measured here beside the published ones, over the batch size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.lines import Line2D

from scalewise.figures.style import FAINT, batch_axis, device_look, new_figure, save, styled, whiskers
from scalewise.findings.cell import Series
from scalewise.findings.speedup import speedups


def speedups_by_batch(series: Series) -> dict[int, dict[int, float]]:
    """Device count -> global batch -> speed-up over one device."""
    found: dict[int, dict[int, float]] = {}
    for each in speedups(series):
        found.setdefault(each.devices, {})[each.batch] = each.speedup
    return found


@styled
def draw_comparison(
    here: Mapping[str, Series], published: Mapping[str, Series], subtitle: str, out: Path
) -> list[Path]:
    """A panel per model; full lines are this machine's, dashed ones the study's at the same device counts."""
    workloads = [workload for workload in published if workload in here]
    first = here[workloads[0]]
    figure, panels = new_figure(
        "Speed-up over one device, here and in the study",
        f"{first.machine}, {first.when}; published: {published[workloads[0]].machine}",
        columns=len(workloads),
        width=max(7.6, 4.5 * len(workloads)),
        when=published[workloads[0]].when,
        subtitle=subtitle,
    )
    for axes, workload in zip(panels, workloads, strict=True):
        counts = published[workload].device_counts
        ours, theirs = speedups_by_batch(here[workload]), speedups_by_batch(published[workload])
        for devices, line in ours.items():
            look = device_look(devices, sorted({*counts, *ours}))
            axes.plot(list(line), list(line.values()), **look, zorder=3)
            timed = [each for each in speedups(here[workload]) if each.devices == devices]
            whiskers(axes, [(each.batch, each.speedup, each.uncertainty) for each in timed], look["color"])
            if devices in theirs:
                dashed = {"color": look["color"], "linestyle": (0, (4, 2)), "linewidth": 1.2, "alpha": 0.8}
                axes.plot(list(theirs[devices]), list(theirs[devices].values()), **dashed)
        axes.axhline(1, color=FAINT, linewidth=1)
        batch_axis(axes, sorted({*here[workload].batches, *published[workload].batches}), len(workloads))
        drawn = [
            each
            for line in (*ours.values(), *(theirs[count] for count in ours if count in theirs))
            for each in line.values()
        ]
        reach = [each.speedup * (1 + each.uncertainty) for each in speedups(here[workload]) if each.uncertainty < 1]
        axes.set_ylim(0, 1.08 * max([1.0, *drawn, *reach]))  # whiskers longer than their value leave the figure
        axes.set_title(workload)
        axes.set_xlabel("global batch size")
        axes.grid(axis="y")
    panels[0].set_ylabel("speed-up over one device")
    handles, labels = panels[0].get_legend_handles_labels()
    handles.append(Line2D([], [], color=FAINT, linestyle=(0, (4, 2)), linewidth=1.2, label="published"))
    figure.legend(handles, [*labels, "published, as\nmany devices"], loc="outside right upper")
    return save(figure, out, "stevens-comparison")
