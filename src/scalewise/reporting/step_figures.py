"""Bytes sent by the busiest device and whether they explain the epoch time; figures of bytes and of phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from scalewise.core.statistics import FEWEST
from scalewise.core.timeline import BETWEEN_DEVICES, PHASES
from scalewise.core.units import seconds_text
from scalewise.reporting.figure_style import FAINT, PAPER, device_look, legend_above, new_figure, number_text, styled
from scalewise.reporting.finding import Finding, devices_text, fit_line, listed, r_squared_text
from scalewise.reporting.series import Cell, Series

GOVERNS_FROM = 0.9
"""Smallest R² at which communication is said to determine the epoch time."""
EXPLAINS_FROM = 0.5
"""Smallest R² at which the fitted line is drawn."""
GB = 1e9


@dataclass(frozen=True)
class Traffic(Finding):
    """Bytes per epoch that the busiest device sends and receives; they halve when the batch doubles."""

    bytes_per_epoch: dict[int, dict[int, int]]
    """Device count -> global batch -> bytes."""

    @property
    def notable(self) -> bool:
        return False

    @property
    def sentence(self) -> str:
        counts_by_text: dict[str, list[int]] = {}
        for devices, by_batch in self.bytes_per_epoch.items():
            ends = sorted({min(by_batch), max(by_batch)})
            text = listed([f"{by_batch[batch] / GB:.3g} GB at batch {batch}" for batch in ends])
            counts_by_text.setdefault(text, []).append(devices)
        amounts = "; ".join(f"{text} on {devices_text(counts)}" for text, counts in counts_by_text.items())
        return f"per epoch the busiest device sends and receives {amounts}"


@dataclass(frozen=True)
class TransferFit(Finding):
    """Fit of `epoch seconds = floor + bytes / bandwidth` over all cells with several devices."""

    floor_seconds: float
    GBps: float | None
    """Fitted bandwidth; None if the epoch time does not grow with the bytes."""
    r_squared: float
    cells: int

    @property
    def possible(self) -> bool:
        """Whether the fit makes physical sense: a positive bandwidth and no negative time at zero bytes."""
        return self.GBps is not None and self.floor_seconds >= 0

    @property
    def explains(self) -> bool:
        return self.possible and self.r_squared >= EXPLAINS_FROM

    @property
    def governs(self) -> bool:
        return self.possible and self.r_squared >= GOVERNS_FROM

    def epoch_seconds(self, transferred_bytes: float) -> float:
        return self.floor_seconds + (transferred_bytes / GB / self.GBps if self.GBps else 0.0)

    @property
    def notable(self) -> bool:
        return self.governs

    @property
    def sentence(self) -> str:
        if self.floor_seconds < 0:
            return (
                "on several devices the bytes sent do not explain the epoch time (the fitted time at zero bytes is "
                "negative)"
            )
        if not self.governs:
            return f"on several devices the bytes sent do not explain the epoch time (R² = {self.r_squared:.2f})"
        return (
            f"on several devices the epoch time grows with the bytes sent, at {self.GBps:.2g} GB/s "
            f"({self.cells} cells, R² = {r_squared_text(self.r_squared)})"
        )


def cells_with_traffic(series: Series) -> list[Cell]:
    """Return the cells with several devices whose bytes per step are known."""
    return [cell for cell in series.cells if cell.devices > 1 and cell.bytes_per_epoch]


def traffic(series: Series) -> Traffic | None:
    """Collect the bytes per epoch by device count and batch; None if they are unknown."""
    by_count: dict[int, dict[int, int]] = {}
    for cell in sorted(cells_with_traffic(series), key=lambda cell: (cell.devices, cell.batch)):
        by_count.setdefault(cell.devices, {})[cell.batch] = cell.bytes_per_epoch or 0
    return Traffic(series.name, by_count) if by_count else None


def transfer_fit(series: Series) -> TransferFit | None:
    """Fit the epoch time to the bytes; None with fewer than three different amounts.

    Cells with too few timed steps are left out.
    """
    cells = [cell for cell in cells_with_traffic(series) if cell.timed_steps is None or cell.timed_steps >= FEWEST]
    fit = fit_line([float(cell.bytes_per_epoch or 0) for cell in cells], [cell.epoch_seconds for cell in cells])
    if fit is None:
        return None
    rate = 1 / fit.slope / GB if fit.slope > 0 else None
    return TransferFit(series.name, fit.intercept, rate, fit.r_squared, len(cells))


COMPUTE = {"load": "#9CCBEA", "forward": "#56A0D3", "loss": "#2F7FBF", "backward": "#0A5A94", "update": "#00375E"}
BETWEEN = {
    "scatter": "#FBD9A8",
    "pull": "#F2B05E",
    "broadcast": "#F2B05E",
    "receive": "#F2B05E",
    "gather": "#E98A2B",
    "reduce": "#D55E00",
    "push": "#B34700",
    "send": "#B34700",
}
LOOKS = {**COMPUTE, **BETWEEN, "idle": "#C4CAD1"}
"""Colour of each phase. Blue: computing; orange: communication; grey: idle. Shades also differ in lightness."""


@dataclass(frozen=True)
class Stack:
    """One bar of the figure: the seconds of each phase of a step."""

    label: str
    phases: dict[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())

    @property
    def between_devices(self) -> float:
        """Fraction of the step spent communicating or waiting for other devices."""
        return sum(seconds for phase, seconds in self.phases.items() if phase in BETWEEN_DEVICES) / self.seconds


def stacks(series: Sequence[Series], batch: int) -> list[Stack]:
    """Return a bar per strategy and device count at one batch, one device first; shared baselines appear once."""
    bars: dict[str, Stack] = {}
    for one_series in series:
        for cell in sorted(one_series.cells, key=lambda cell: cell.devices):
            if cell.batch != batch or not cell.phases or not sum(cell.phases.values()):
                continue
            label = "1 device" if cell.devices == 1 else f"{one_series.strategy}, {cell.devices} devices"
            ordered = {phase: cell.phases[phase] for phase in PHASES if cell.phases.get(phase)}
            bars.setdefault(label, Stack(label, ordered))
    return sorted(bars.values(), key=lambda stack: stack.label != "1 device")


def batches_with_phases(series: Sequence[Series]) -> list[int]:
    """Return the smallest and the largest batch with several bars to compare."""
    batches = sorted({cell.batch for one_series in series for cell in one_series.cells})
    comparable = [batch for batch in batches if len(stacks(series, batch)) > 1]
    return sorted({comparable[0], comparable[-1]}) if comparable else []


@styled
def draw_phases(series: Sequence[Series]) -> Figure | None:
    """Draw the phases of a step as stacked bars; None if no batch has phases of several cells."""
    batches = batches_with_phases(series)
    if not batches:
        return None
    most = max(len(stacks(series, batch)) for batch in batches)
    figure, panels = new_figure(
        f"{series[0].workload}: time per step by phase",
        series[0].machine,
        rows=len(batches),
        width=8.2,
        height=1.7 + len(batches) * (0.62 + 0.36 * most),
        when=series[0].when,
        subtitle="Blue: computing. Orange: communication, including waiting for other devices. Grey: idle.",
    )
    bar_of_phase: dict[str, BarContainer] = {}
    for axes, batch in zip(panels, batches, strict=True):
        bars = stacks(series, batch)
        longest = max(stack.seconds for stack in bars)
        for row, stack in enumerate(bars):
            left = 0.0
            for phase, seconds in stack.phases.items():
                patch = axes.barh(
                    row, seconds * 1e3, left=left, color=LOOKS[phase], edgecolor=PAPER, linewidth=0.6, height=0.68
                )
                bar_of_phase.setdefault(phase, patch)
                left += seconds * 1e3
            share = f", {stack.between_devices:.0%} communication" if stack.between_devices else ""
            axes.annotate(
                f"{seconds_text(stack.seconds)}{share}",
                (left, row),
                (5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
                color=FAINT,
            )
        axes.set_yticks(range(len(bars)), [stack.label for stack in bars])
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.set_xlim(0, longest * 1e3 * 1.6)
        axes.set_title(f"global batch {batch}")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
    panels[-1].set_xlabel("milliseconds per step")
    ordered = [phase for phase in PHASES if phase in bar_of_phase]
    figure.legend(
        [bar_of_phase[phase].patches[0] for phase in ordered],
        ordered,
        loc="outside right upper",
        title="phase",
        alignment="left",
    )
    return figure


FEWEST_AMOUNTS = 3


def transfers(series: Series) -> dict[int, list[tuple[float, float]]]:
    """Map device counts to points (GB per epoch, seconds per epoch), from the largest batch to the smallest."""
    points: dict[int, list[tuple[float, float]]] = {}
    for cell in sorted(cells_with_traffic(series), key=lambda cell: (cell.devices, -cell.batch)):
        points.setdefault(cell.devices, []).append(((cell.bytes_per_epoch or 0) / GB, cell.epoch_seconds))
    return points


@styled
def draw_transfer(series: Series, subtitle: str = "") -> Figure | None:
    """Plot the epoch time over the bytes sent; None with fewer than three different amounts."""
    points = transfers(series)
    if len({gigabytes for line in points.values() for gigabytes, _ in line}) < FEWEST_AMOUNTS:
        return None
    figure, [axes] = new_figure(
        f"{series.workload}, {series.strategy}: epoch time by bytes sent",
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
            label=_fit_label(fit),
        )
    elif fit:
        axes.plot([], [], linestyle="none", label="no linear fit")
    axes.set_xlim(0, furthest * 1.04)
    axes.set_ylim(0, highest * 1.08)
    axes.grid()
    axes.set_xlabel("GB sent and received by the busiest device per epoch")
    axes.set_ylabel("seconds per epoch")
    legend_above(axes)
    return figure


def _fit_label(fit: TransferFit) -> str:
    assert fit.GBps is not None
    return (
        f"{seconds_text(fit.floor_seconds)} + bytes / {number_text(fit.GBps)} GB/s,  "
        f"R² = {r_squared_text(fit.r_squared)}"
    )
