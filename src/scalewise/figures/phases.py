"""Where a step's seconds go, stacked per strategy and device count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from scalewise.figures.style import FAINT, PAPER, new_figure, styled
from scalewise.findings.cell import Series
from scalewise.phases import BETWEEN_DEVICES, PHASES
from scalewise.results.units import seconds_text

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
"""Blue is work, orange is between devices, grey is waiting: shades differ in lightness too, for print."""


@dataclass(frozen=True)
class Stack:
    """One bar: the seconds of each phase of a step."""

    label: str
    phases: dict[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())

    @property
    def between_devices(self) -> float:
        """The part of the step spent on, or waiting for, other devices."""
        return sum(seconds for phase, seconds in self.phases.items() if phase in BETWEEN_DEVICES) / self.seconds


def stacks(series: Sequence[Series], batch: int) -> list[Stack]:
    """All strategies of one workload at one batch, on one device first; a baseline that several share comes once."""
    bars: dict[str, Stack] = {}
    for each in series:
        for cell in sorted(each.cells, key=lambda cell: cell.devices):
            if cell.batch != batch or not cell.phases or not sum(cell.phases.values()):
                continue
            label = "1 device" if cell.devices == 1 else f"{each.strategy}, {cell.devices} devices"
            ordered = {phase: cell.phases[phase] for phase in PHASES if cell.phases.get(phase)}
            bars.setdefault(label, Stack(label, ordered))
    return sorted(bars.values(), key=lambda stack: stack.label != "1 device")


def batches_with_phases(series: Sequence[Series]) -> list[int]:
    """The smallest and the largest batch at which several bars can be compared."""
    batches = sorted({cell.batch for each in series for cell in each.cells})
    telling = [batch for batch in batches if len(stacks(series, batch)) > 1]
    return sorted({telling[0], telling[-1]}) if telling else []


@styled
def draw_phases(series: Sequence[Series]) -> Figure | None:
    """None where phases were not timed at a batch that several cells share."""
    batches = batches_with_phases(series)
    if not batches:
        return None
    most = max(len(stacks(series, batch)) for batch in batches)
    figure, panels = new_figure(
        f"{series[0].workload}: where a step's seconds go",
        series[0].machine,
        rows=len(batches),
        width=8.2,
        height=1.7 + len(batches) * (0.62 + 0.36 * most),
        when=series[0].when,
        subtitle="Blue: computing. Orange: sending, receiving and waiting for other devices.",
    )
    seen: dict[str, BarContainer] = {}
    for axes, batch in zip(panels, batches, strict=True):
        bars = stacks(series, batch)
        longest = max(stack.seconds for stack in bars)
        for row, stack in enumerate(bars):
            left = 0.0
            for phase, seconds in stack.phases.items():
                patch = axes.barh(
                    row, seconds * 1e3, left=left, color=LOOKS[phase], edgecolor=PAPER, linewidth=0.6, height=0.68
                )
                seen.setdefault(phase, patch)
                left += seconds * 1e3
            share = f", {stack.between_devices:.0%} between devices" if stack.between_devices else ""
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
    panels[-1].set_xlabel("milliseconds of a step")
    ordered = [phase for phase in PHASES if phase in seen]
    figure.legend(
        [seen[phase].patches[0] for phase in ordered],
        ordered,
        loc="outside right upper",
        title="phase",
        alignment="left",
    )
    return figure
