"""Losses over time, synchronous beside asynchronous, a panel for each condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from scalewise.experiments.curves import Point, seconds_to, smooth
from scalewise.figures.style import COLOURS, FAINT, new_figure, save

WINDOW_SAMPLES = 160


class Curve(Protocol):
    @property
    def points(self) -> Sequence[Point]: ...


def draw(ran: Mapping[str, Mapping[str, Curve]], target: float, machine: str, folder: Path) -> list[Path]:
    rows = -(-len(ran) // 2)
    figure, axes = new_figure(
        "Synchronous and asynchronous training: loss over time",
        f"U-Net, 2 workers and 1 parameter server on {machine}",
        rows=rows,
        columns=2,
        width=8.5,
        height=0.8 + 2.6 * rows,
    )
    for panel, (name, both) in zip(axes, ran.items(), strict=False):
        panel.axhline(target, color=FAINT, linestyle=":", linewidth=1)
        for (strategy, curve), colour, label in zip(
            both.items(), COLOURS, ("synchronous", "asynchronous"), strict=False
        ):
            smoothed = smooth(curve.points, WINDOW_SAMPLES)
            if not smoothed:
                continue
            panel.plot([p.seconds for p in smoothed], [p.loss for p in smoothed], color=colour, label=label)
            reached = seconds_to(smoothed, target)
            if reached is not None:
                panel.plot([reached], [target], marker="o", color=colour, markersize=7, zorder=3)
                panel.annotate(
                    f"{reached:.0f} s",
                    (reached, target),
                    xytext=(0, 7 if strategy.endswith("async") else -14),
                    textcoords="offset points",
                    ha="center",
                    color=colour,
                    fontsize=9,
                )
        panel.set_title(f"With {name}", loc="left")
        starts = [curve.points[0].seconds for curve in both.values() if curve.points]
        if max(starts, default=0.0) > 0.25 * max(curve.points[-1].seconds for curve in both.values() if curve.points):
            panel.text(
                0.5,
                0.93,
                "the synchronous run ended and was\nresumed from its checkpoint by the other worker",
                transform=panel.transAxes,
                ha="center",
                va="top",
                fontsize=8,
                color=FAINT,
            )
        panel.set_xlim(0)
        panel.set_xlabel("seconds")
        panel.set_ylabel("training loss")
    for unused in axes[len(ran) :]:
        unused.set_visible(False)
    axes[0].legend(loc="upper right", frameon=False)
    return save(figure, folder, "sync-vs-async")
