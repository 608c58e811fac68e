"""The choke map, drawn: model size across, compute per sample upwards, speed-up on two devices as colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.colors import LinearSegmentedColormap, Normalize

from scalewise.experiments.choke_map_plane import Spot, border
from scalewise.figures.style import COLOURS, INK, PAPER, new_figure, save, styled

CHOKE_TO_GAIN = LinearSegmentedColormap.from_list("choke to gain", [COLOURS[1], "#F4F4F2", COLOURS[0]])


def shade(speedup: float) -> float:
    """0 for a choke by four or worse, 1/2 for even, 1 for twice as fast or better."""
    return min(1.0, max(0.0, speedup / 2)) if speedup >= 1 else max(0.0, 0.5 * (speedup - 0.25) / 0.75)


@styled
def draw_map(
    spots: Sequence[Spot], marked: Mapping[str, tuple[int, int]], title: str, machine: str, subtitle: str, out: Path
) -> list[Path]:
    """`marked`: known models, name -> (parameters, flops per sample)."""
    figure, [axes] = new_figure(title, machine, width=8.2, height=6.0, subtitle=subtitle)
    points = axes.scatter(
        [spot.parameters for spot in spots],
        [spot.flops for spot in spots],
        c=[shade(spot.speedup) for spot in spots],
        cmap=CHOKE_TO_GAIN,
        norm=Normalize(0, 1),
        s=1500,
        marker="s",
        edgecolors="#C4CAD1",
        linewidths=0.8,
    )
    for spot in spots:
        axes.annotate(
            f"{spot.speedup:.2f}",
            (spot.parameters, spot.flops),
            ha="center",
            va="center",
            fontsize=9,
            color=PAPER if abs(shade(spot.speedup) - 0.5) > 0.3 else INK,
        )
    crossings = border(spots)
    if len(crossings) > 1:
        axes.plot(list(crossings), list(crossings.values()), color=INK, linewidth=1.4, linestyle=(0, (4, 3)))
    for name, (parameters, flops) in marked.items():
        axes.plot(parameters, flops, marker="*", markersize=15, color=INK, linestyle="none")
        axes.annotate(
            name, (parameters, flops), (9, 7), textcoords="offset points", fontsize=9.5, fontweight="bold", color=INK
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(0.12)
    axes.set_xlabel("parameters")
    axes.set_ylabel("flops per sample, forward")
    bar = figure.colorbar(points, ax=axes, ticks=[0, shade(0.5), 0.5, 0.75, 1], shrink=0.8)
    bar.ax.set_yticklabels(["0.25x", "0.5x", "even", "1.5x", "2x"])
    bar.set_label("speed-up on two devices")
    return save(figure, out, "choke-map")
