"""Losses over time, synchronous beside asynchronous, a panel for each condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewise.experiments.curves import Point, seconds_to
from scalewise.experiments.sync_vs_async_runs import WINDOW_SAMPLES, Ran
from scalewise.figures.style import COLOURS, FAINT, INK, new_figure, save, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = ("synchronous", "asynchronous")
LEGEND_ROW = 0.1
"""Of a panel's height, which the curves leave free."""
DEATH: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (4, 2))}


@styled
def draw(
    ran: Mapping[str, Mapping[str, Ran]], about: Mapping[str, str], target: float, machine: str, folder: Path
) -> list[Path]:
    rows = -(-len(ran) // 2)
    figure, axes = new_figure(
        "Synchronous and asynchronous training: loss over time",
        machine,
        rows=rows,
        columns=2,
        width=9.0,
        height=1.0 + 3.0 * rows,
        subtitle=f"Mean over the last {WINDOW_SAMPLES} samples. Dots: when it first came down to {target:.2f}.",
    )
    for panel, (name, both) in zip(axes, ran.items(), strict=False):
        for found, colour, label in zip(both.values(), COLOURS, NAMES, strict=False):
            _draw_run(panel, found, target, colour, label)
        panel.axhline(target, color=FAINT, linestyle=":", linewidth=1, zorder=0)
        panel.set_title(f"With {name}", pad=18)
        panel.annotate(
            about[name],
            (0, 1),
            (0, 5),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=8.5,
            color=FAINT,
        )
        highest = max((point.loss for each in both.values() for point in each.smoothed), default=1.0)
        _draw_deaths(panel, list(both.values()), highest)
        panel.set_xlim(0)
        legend = panel.legend(loc="upper right", handlelength=1.6, labelspacing=0.3)
        panel.set_ylim(0, highest / (1 - LEGEND_ROW * len(legend.get_texts())))
        panel.set_xlabel("seconds")
        panel.set_ylabel("training loss")
    for unused in axes[len(ran) :]:
        unused.set_visible(False)
    return save(figure, folder, "sync-vs-async")


def _draw_run(panel: Axes, ran: Ran, target: float, colour: str, label: str) -> None:
    smoothed = ran.smoothed
    reached = seconds_to(smoothed, target)
    if ran.reason:
        panel.plot([], [], color=colour, label=f"{label}: did not come through")
        return
    until, after = _split(smoothed, ran.resumed_seconds)
    _line(panel, until, colour, label=f"{label}: {_seconds(reached) if reached is not None else 'never'}")
    _line(panel, after, colour)
    if until and after:
        gap = panel.plot(
            [until[-1].seconds, after[0].seconds], [until[-1].loss, after[0].loss], color=colour, linestyle=(0, (1, 2))
        )
        gap[0].set_label("ended, resumed from its checkpoint")
    if reached is not None:
        panel.plot([reached], [target], marker="o", color=colour, markersize=7, zorder=3)


def _draw_deaths(panel: Axes, both: Sequence[Ran], highest: float) -> None:
    moments = [(ran.death_seconds, colour) for ran, colour in zip(both, COLOURS, strict=False) if ran.death_seconds]
    if not moments:
        return
    for moment, colour in moments:
        panel.plot([moment, moment], [0, highest], **DEATH, color=colour, zorder=1)
    told = " and ".join(_seconds(moment) for moment, _ in moments)
    panel.plot([], [], **DEATH, color=INK, label=f"worker 1 killed, at {told}")


def _line(panel: Axes, points: Sequence[Point], colour: str, label: str | None = None) -> None:
    panel.plot([p.seconds for p in points], [p.loss for p in points], color=colour, label=label)


def _split(points: Sequence[Point], resumed: float | None) -> tuple[list[Point], list[Point]]:
    """Before a run had to be resumed, and from then on."""
    until = [point for point in points if resumed is None or point.seconds < resumed]
    return until, list(points[len(until) :])


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"
