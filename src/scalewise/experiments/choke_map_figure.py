"""The choke map, drawn: model size across, compute per sample upwards, speed-up on two devices as colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.patheffects import withStroke

from scalewise.experiments.choke_map_plane import Spot, border_pieces, short
from scalewise.figures.style import COLOURS, INK, PAPER, new_figure, save, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNITS = ("parameters", "flops")
CHOKE_TO_GAIN = LinearSegmentedColormap.from_list("choke to gain", [COLOURS[1], "#F4F4F2", COLOURS[0]])

ROOM = 0.16
"""Of an axis, for arrows to models beyond the tiles and their names."""
WORST, BEST = 0.25, 2.0
"""Speed-ups at the ends of the colours."""


def shade(speedup: float) -> float:
    """0 for a choke by four or worse, 1/2 for even, 1 for twice as fast or better."""
    return min(1.0, speedup / BEST) if speedup >= 1 else max(0.0, 0.5 * (speedup - WORST) / (1 - WORST))


def edges(centres: Sequence[int]) -> list[float]:
    """Where tiles meet: half-way between neighbours, on a logarithmic axis."""
    inner = [math.sqrt(left * right) for left, right in pairwise(centres)]
    if not inner:
        return [centres[0] / 2, centres[0] * 2]
    return [centres[0] ** 2 / inner[0], *inner, centres[-1] ** 2 / inner[-1]]


def beyond(value: float, ends: Sequence[float]) -> int:
    """-1 below the tiles, 1 above them, 0 among them."""
    return (value > ends[-1]) - (value < ends[0])


def limits(marked: Sequence[int], ends: Sequence[float]) -> tuple[float, float]:
    """Of an axis: all tiles, with room for an arrow where models lie beyond them."""
    ways = {beyond(value, ends) for value in marked}
    room = (ends[-1] / ends[0]) ** ROOM
    return ends[0] / (room if -1 in ways else 1), ends[-1] * (room if 1 in ways else 1)


def border_line(piece: Mapping[int, float], sizes: Sequence[int]) -> tuple[list[float], list[float]]:
    """Across each column of tiles, and along their edges from one to the next: through no tile that knows nothing."""
    columns = [(edges(sizes)[sizes.index(size) :][:2], flops) for size, flops in piece.items()]
    return [end for ends, _ in columns for end in ends], [flops for _, flops in columns for _ in range(2)]


def clipped(speedups: Sequence[float]) -> Literal["neither", "min", "max", "both"]:
    """The ends of the colours that stand for more than their label says."""
    below, above = min(speedups) < WORST, max(speedups) > BEST
    return "both" if below and above else "min" if below else "max" if above else "neither"


@styled
def draw_map(
    spots: Sequence[Spot],
    marked: Mapping[str, tuple[int, int]],
    title: str,
    machine: str,
    subtitle: str,
    out: Path,
    when: str | None = None,
) -> list[Path]:
    """`marked`: known models, name -> (parameters, flops per sample)."""
    figure, [axes] = new_figure(title, machine, width=8.2, height=6.0, when=when, subtitle=subtitle)
    sizes, computes = sorted({spot.parameters for spot in spots}), sorted({spot.flops for spot in spots})
    shades = np.full((len(computes), len(sizes)), np.nan)
    for spot in spots:
        shades[computes.index(spot.flops), sizes.index(spot.parameters)] = shade(spot.speedup)
    tiles = axes.pcolormesh(
        edges(sizes), edges(computes), shades, cmap=CHOKE_TO_GAIN, norm=Normalize(0, 1), edgecolors=PAPER, linewidth=1.5
    )
    for spot in spots:
        corner = edges(sizes)[sizes.index(spot.parameters)], edges(computes)[computes.index(spot.flops)]
        ink = PAPER if abs(shade(spot.speedup) - 0.5) > 0.4 else INK
        axes.annotate(
            f"{spot.speedup:.2f}{'' if spot.certain else '?'}",
            corner,
            (5, 5),
            textcoords="offset points",
            fontsize=9,
            color=ink,
        )
    for piece in border_pieces(spots):
        axes.plot(*border_line(piece, sizes), color=INK, linewidth=1.4, linestyle=(0, (4, 3)))
    for name, place in marked.items():
        mark(axes, name, place, (edges(sizes), edges(computes)))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*limits([parameters for parameters, _ in marked.values()], edges(sizes)))
    axes.set_ylim(*limits([flops for _, flops in marked.values()], edges(computes)))
    axes.spines[:].set_visible(False)
    axes.set_xlabel("parameters")
    axes.set_ylabel("flops per sample, forward")
    extend = clipped([spot.speedup for spot in spots])
    bar = figure.colorbar(tiles, ax=axes, ticks=[0, shade(0.5), 0.5, 0.75, 1], shrink=0.8, extend=extend)
    bar.ax.set_yticklabels(["0.25x", "0.5x", "even", "1.5x", "2x"])
    bar.set_label("speed-up on two devices")
    return save(figure, out, "choke-map")


def mark(axes: Axes, name: str, place: tuple[int, int], ends: tuple[Sequence[float], Sequence[float]]) -> None:
    """A star where the model lies; beyond the tiles, an arrow at their edge and what it points to."""
    ways = [beyond(value, each) for value, each in zip(place, ends, strict=True)]
    x, y = (min(max(value, each[0]), each[-1]) for value, each in zip(place, ends, strict=True))
    text, offset, sides = name, (8, 6), ("left", "baseline")
    if any(ways):
        tip = (24 * ways[0], 24 * ways[1])
        arrow = {"arrowstyle": "<|-", "lw": 2, "color": INK}
        axes.annotate("", (x, y), tip, textcoords="offset points", arrowprops=arrow)
        far = [f"{short(value)} {unit}" for value, unit, way in zip(place, UNITS, ways, strict=True) if way]
        text = "\n".join([name, *far])  # at the tip of an arrow up or down, else over it, where the map ends
        offset = (tip[0], tip[1] + 3 * ways[1]) if ways[1] else (tip[0], 7)
        across = "center" if not ways[0] else "right" if ways[0] > 0 else "left"
        sides = across, "top" if ways[1] < 0 else "bottom"
    else:
        axes.plot(x, y, marker="*", markersize=15, color=INK, linestyle="none", zorder=4)
    label = axes.annotate(
        text,
        (x, y),
        offset,
        textcoords="offset points",
        ha=sides[0],
        va=sides[1],
        fontsize=9.5,
        fontweight="bold",
        color=INK,
        zorder=5,
    )
    label.set_path_effects([withStroke(linewidth=3, foreground=PAPER)])
