"""Losses over time, synchronous beside asynchronous, a panel for each condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewise.experiments.curves import Point, seconds_to
from scalewise.experiments.sync_vs_async_runs import WINDOW_SAMPLES, Ran
from scalewise.experiments.sync_vs_async_words import Trial, aimed_for
from scalewise.figures.style import COLOURS, FAINT, INK, new_figure, save, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = ("synchronous", "asynchronous")
LEGEND_ROW = 0.1
"""Of a panel's height, which the curves leave free."""
DEATH: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (4, 2))}


@styled
def draw(trials: Sequence[Trial], about: Mapping[str, str], machine: str, folder: Path) -> list[Path]:
    """Of several seeds, a line each."""
    names = list(trials[0].ran)
    rows = -(-len(names) // 2)
    each = f" {len(trials)} seeds, a line each." if len(trials) > 1 else ""
    dots = f"Dots: when it first came down to {aimed_for(trials)}."
    figure, axes = new_figure(
        "Synchronous and asynchronous training: loss over time",
        machine,
        rows=rows,
        columns=2,
        width=9.0,
        height=1.0 + 3.0 * rows,
        subtitle=f"Mean over the last {WINDOW_SAMPLES} samples. {dots}{each}",
    )
    for panel, name in zip(axes, names, strict=False):
        for strategy, colour, label in zip(trials[0].ran[name], COLOURS, NAMES, strict=False):
            _draw_runs(panel, [(trial, trial.ran[name][strategy]) for trial in trials], colour, label)
        for target in {trial.target for trial in trials}:
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
        ran = [found for trial in trials for found in trial.ran[name].values()]
        highest = max((point.loss for found in ran for point in found.smoothed), default=1.0)
        _draw_deaths(panel, [list(trial.ran[name].values()) for trial in trials], highest)
        panel.set_xlim(0)
        legend = panel.legend(loc="upper right", handlelength=1.6, labelspacing=0.3)
        panel.set_ylim(0, highest / (1 - LEGEND_ROW * len(legend.get_texts())))
        panel.set_xlabel("seconds")
        panel.set_ylabel("training loss")
    for unused in axes[len(names) :]:
        unused.set_visible(False)
    return save(figure, folder, "sync-vs-async")


def _draw_runs(panel: Axes, found: Sequence[tuple[Trial, Ran]], colour: str, label: str) -> None:
    times = [None if ran.reason else seconds_to(ran.smoothed, trial.target) for trial, ran in found]
    told = [
        "did not come through" if ran.reason else "never" if seconds is None else _seconds(seconds)
        for (_, ran), seconds in zip(found, times, strict=True)
    ]
    panel.plot([], [], color=colour, label=f"{label}: {', '.join(told)}")
    resumed = False
    for (trial, ran), reached in zip(found, times, strict=True):
        until, after = _split(ran.smoothed, ran.resumed_seconds)
        _line(panel, until, colour, len(found))
        _line(panel, after, colour, len(found))
        if until and after:
            ends = [until[-1], after[0]]
            panel.plot([p.seconds for p in ends], [p.loss for p in ends], color=colour, linestyle=(0, (1, 2)))
            resumed = True
        if reached is not None:
            panel.plot([reached], [trial.target], marker="o", color=colour, markersize=7, zorder=3)
    if resumed:
        panel.plot([], [], color=colour, linestyle=(0, (1, 2)), label="ended, resumed from its checkpoint")


def _draw_deaths(panel: Axes, seeds: Sequence[Sequence[Ran]], highest: float) -> None:
    moments = [
        (ran.death_seconds, colour)
        for both in seeds
        for ran, colour in zip(both, COLOURS, strict=False)
        if ran.death_seconds
    ]
    if not moments:
        return
    for moment, colour in moments:
        panel.plot([moment, moment], [0, highest], **DEATH, color=colour, zorder=1)
    seconds = [moment for moment, _ in moments]
    told = " and ".join(map(_seconds, seconds))
    if len(seeds) > 1:
        told = f"{min(seconds):.1f} to {_seconds(max(seconds))}"
    panel.plot([], [], **DEATH, color=INK, label=f"worker 1 killed, at {told}")


def _line(panel: Axes, points: Sequence[Point], colour: str, seeds: int) -> None:
    look: dict[str, Any] = {} if seeds == 1 else {"linewidth": 1.4, "alpha": 0.8}
    panel.plot([p.seconds for p in points], [p.loss for p in points], color=colour, **look)


def _split(points: Sequence[Point], resumed: float | None) -> tuple[list[Point], list[Point]]:
    """Before a run had to be resumed, and from then on."""
    until = [point for point in points if resumed is None or point.seconds < resumed]
    return until, list(points[len(until) :])


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"
