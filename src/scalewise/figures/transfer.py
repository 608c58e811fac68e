"""What crosses the busiest link in an epoch against the seconds the epoch takes, with the line through it."""

from __future__ import annotations

from matplotlib.figure import Figure

from scalewise.figures.style import FAINT, device_look, legend_above, new_figure, number_text, styled
from scalewise.findings.cell import Series
from scalewise.findings.line import r_squared_text
from scalewise.findings.traffic import GB, TransferFit, moving, transfer_fit
from scalewise.results.units import seconds_text

FEWEST_AMOUNTS = 3


def transfers(series: Series) -> dict[int, list[tuple[float, float]]]:
    """Device count -> (GB per epoch, seconds per epoch), from the largest batch to the smallest."""
    found: dict[int, list[tuple[float, float]]] = {}
    for cell in sorted(moving(series), key=lambda cell: (cell.devices, -cell.batch)):
        found.setdefault(cell.devices, []).append(((cell.bytes_per_epoch or 0) / GB, cell.epoch_seconds))
    return found


@styled
def draw_transfer(series: Series, subtitle: str = "") -> Figure | None:
    """None where too little was moved, or nobody counted it: fewer than three amounts say nothing of a line."""
    points = transfers(series)
    if len({gigabytes for line in points.values() for gigabytes, _ in line}) < FEWEST_AMOUNTS:
        return None
    figure, [axes] = new_figure(
        f"{series.workload} under {series.strategy}: transfer and epoch time",
        series.machine,
        when=series.when,
        subtitle=subtitle,
    )
    for devices, line in points.items():
        axes.plot(*zip(*line, strict=True), **device_look(devices, series.device_counts), linestyle="none", zorder=3)
    fit = transfer_fit(series)
    furthest = max(gigabytes for line in points.values() for gigabytes, _ in line)
    highest = max(seconds for line in points.values() for _, seconds in line)
    if fit and fit.explains:
        ends = (0.0, furthest)
        seconds_at = [fit.epoch_seconds(gigabytes * GB) for gigabytes in ends]
        highest = max(highest, *seconds_at)
        axes.plot(
            ends,
            seconds_at,
            color=FAINT,
            linewidth=1.4,
            linestyle="-" if fit.governs else (0, (4, 3)),
            label=_law(fit),
        )
    elif fit:
        axes.plot([], [], linestyle="none", label="no straight line")
    axes.set_xlim(0, furthest * 1.04)
    axes.set_ylim(0, highest * 1.08)
    axes.grid()
    axes.set_xlabel("GB that the busiest device sends and receives in an epoch")
    axes.set_ylabel("seconds per epoch")
    legend_above(axes)
    return figure


def _law(fit: TransferFit) -> str:
    assert fit.GBps is not None
    return (
        f"{seconds_text(fit.floor_seconds)} + bytes / {number_text(fit.GBps)} GB/s,  "
        f"R² = {r_squared_text(fit.r_squared)}"
    )
