"""The choke map, drawn: model size across, compute per sample upwards, speed-up on two devices as colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.patheffects import withStroke

from scalewise.experiments.choke_map_plane import Spot, border
from scalewise.figures.style import COLOURS, INK, PAPER, new_figure, save, styled

CHOKE_TO_GAIN = LinearSegmentedColormap.from_list("choke to gain", [COLOURS[1], "#F4F4F2", COLOURS[0]])


def shade(speedup: float) -> float:
    """0 for a choke by four or worse, 1/2 for even, 1 for twice as fast or better."""
    return min(1.0, max(0.0, speedup / 2)) if speedup >= 1 else max(0.0, 0.5 * (speedup - 0.25) / 0.75)


def edges(centres: Sequence[int]) -> list[float]:
    """Where tiles meet: half-way between neighbours, on a logarithmic axis."""
    inner = [math.sqrt(left * right) for left, right in pairwise(centres)]
    if not inner:
        return [centres[0] / 2, centres[0] * 2]
    return [centres[0] ** 2 / inner[0], *inner, centres[-1] ** 2 / inner[-1]]


@styled
def draw_map(
    spots: Sequence[Spot], marked: Mapping[str, tuple[int, int]], title: str, machine: str, subtitle: str, out: Path
) -> list[Path]:
    """`marked`: known models, name -> (parameters, flops per sample)."""
    figure, [axes] = new_figure(title, machine, width=8.2, height=6.0, subtitle=subtitle)
    sizes, computes = sorted({spot.parameters for spot in spots}), sorted({spot.flops for spot in spots})
    shades = np.full((len(computes), len(sizes)), np.nan)
    for spot in spots:
        shades[computes.index(spot.flops), sizes.index(spot.parameters)] = shade(spot.speedup)
    tiles = axes.pcolormesh(
        edges(sizes), edges(computes), shades, cmap=CHOKE_TO_GAIN, norm=Normalize(0, 1), edgecolors=PAPER, linewidth=1.5
    )
    for spot in spots:
        corner = edges(sizes)[sizes.index(spot.parameters)], edges(computes)[computes.index(spot.flops)]
        ink = PAPER if abs(shade(spot.speedup) - 0.5) > 0.3 else INK
        axes.annotate(
            f"{spot.speedup:.2f}{'' if spot.certain else '?'}",
            corner,
            (5, 5),
            textcoords="offset points",
            fontsize=9,
            color=ink,
        )
    crossings = border(spots)
    if len(crossings) > 1:
        axes.plot(list(crossings), list(crossings.values()), color=INK, linewidth=1.4, linestyle=(0, (4, 3)))
    for name, (parameters, flops) in marked.items():
        axes.plot(parameters, flops, marker="*", markersize=15, color=INK, linestyle="none", zorder=4)
        label = axes.annotate(
            name, (parameters, flops), (8, 6), textcoords="offset points", fontsize=9.5, fontweight="bold", color=INK
        )
        label.set_path_effects([withStroke(linewidth=3, foreground=PAPER)])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(0.06)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("parameters")
    axes.set_ylabel("flops per sample, forward")
    bar = figure.colorbar(tiles, ax=axes, ticks=[0, shade(0.5), 0.5, 0.75, 1], shrink=0.8)
    bar.ax.set_yticklabels(["0.25x", "0.5x", "even", "1.5x", "2x"])
    bar.set_label("speed-up on two devices")
    return save(figure, out, "choke-map")
