"""Seconds per epoch over the batch size, a line per device count: the study's figures 11 and 12."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalewise.figures.style import (
    FAINT,
    batch_axis,
    device_look,
    legend_above,
    new_figure,
    seconds_axis,
    styled,
    whiskers,
    worth_showing,
)
from scalewise.findings.bounce import bounce
from scalewise.findings.cell import Cell, Series
from scalewise.findings.law import inverse_batch_law


@styled
def draw_epochs(series: Series, subtitle: str = "") -> Figure | None:
    """Where the inverse-batch law holds its curve is drawn, elsewhere the points are joined. None at a lone batch."""
    if len(series.batches) < 2:
        return None
    figure, [axes] = new_figure(
        f"{series.workload} under {series.strategy}: seconds per epoch",
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
        axes.plot([], [], color=FAINT, linewidth=1.4, label="floor + steps × constant")
    if uncertain:
        axes.errorbar([], [], [], fmt="none", ecolor=FAINT, elinewidth=1.1, capsize=3, label="95 % interval")
    seconds_axis(axes, [cell.epoch_seconds * (1 + min(1.0, shown(cell))) for cell in series.cells])
    _mark_bounce(axes, series)
    batch_axis(axes, series.batches)
    axes.set_xlabel("global batch size")
    legend_above(axes)
    return figure


def shown(cell: Cell) -> float:
    """The part of its whisker; a very long one may leave the figure."""
    return cell.uncertainty if worth_showing(cell.uncertainty) else 0.0


def _mark_bounce(axes: Axes, series: Series) -> None:
    """Rings around the last cells before seconds per sample jump, with the samples that each device had."""
    found = bounce(series)
    if found is None or found.above is None:
        return
    ring: dict[str, Any] = {"marker": "o", "fillstyle": "none", "markeredgecolor": FAINT, "linestyle": "none"}
    for jump in found.jumps:
        low = next(cell for cell in series.line(jump.devices) if cell.batch_per_device == jump.last_low)
        axes.plot(low.batch, low.epoch_seconds, **ring, markersize=14)
        axes.annotate(
            f"{jump.last_low} each",
            (low.batch, low.epoch_seconds),
            (0, 12 if low.batch == series.batches[0] else -12),
            textcoords="offset points",
            ha="center",
            va="bottom" if low.batch == series.batches[0] else "top",
            fontsize=8,
            color=FAINT,
        )
    axes.plot([], [], **ring, markersize=9, label="last before the bounce")
