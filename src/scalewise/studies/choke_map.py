"""Choke map: which synthetic models gain from a second device."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.patheffects import withStroke

from scalewise.core.errors import RunFailed
from scalewise.core.files import write_atomically
from scalewise.core.specs import parse_spec
from scalewise.formats.store import Store
from scalewise.launch.cpu_cores import allowed_cores
from scalewise.models.describe import describe
from scalewise.reporting.figure_style import COLOURS, INK, PAPER, new_figure, save, styled
from scalewise.reporting.finding import ExperimentResult, when_text, write_markdown
from scalewise.reporting.report import remarks_on
from scalewise.reporting.series import Series, series_of
from scalewise.reporting.speedups import speedups
from scalewise.sweep.environment import cores_in_use, load_remarks, not_begun_remarks, roughness
from scalewise.sweep.measure import measure
from scalewise.sweep.result import cell_line
from scalewise.sweep.sweep import Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes


STUDIED = {"linear": False, "conv": True}
"""The study's models, and whether they gained from a second device in the study."""
NEAR_DECADES = 0.5
"""Largest distance, in decades along each axis, at which a synthetic model represents a known one."""


@dataclass(frozen=True)
class MapPoint:
    """A model on the map and its speed-up on two devices."""

    parameters: int
    flops: int
    """Flops per sample of the forward pass."""
    speedup: float
    certain: bool = True
    """Whether the interval excludes a speed-up of 1."""

    @property
    def flops_per_parameter(self) -> float:
        return self.flops / self.parameters


def border(points: Sequence[MapPoint]) -> dict[int, float]:
    """Interpolate, for each model size, the flops per sample at which two devices take as long as one.

    Sizes at which all models gain or all choke are left out, and those where a model next to the border is uncertain.
    """
    crossings: dict[int, float] = {}
    for parameters in sorted({point.parameters for point in points}):
        column = sorted((point for point in points if point.parameters == parameters), key=lambda point: point.flops)
        for below, above in pairwise(column):
            if below.certain and above.certain and below.speedup < 1 <= above.speedup:
                part = -math.log(below.speedup) / (math.log(above.speedup) - math.log(below.speedup))
                crossings[parameters] = math.exp(
                    math.log(below.flops) + part * (math.log(above.flops) - math.log(below.flops))
                )
    return crossings


def border_pieces(points: Sequence[MapPoint]) -> list[dict[int, float]]:
    """Split the border into pieces of neighbouring model sizes, interrupted at sizes without a border."""
    crossings, pieces = border(points), list[dict[int, float]]()
    joined = False
    for parameters in sorted({point.parameters for point in points}):
        if parameters in crossings:
            if not joined:
                pieces.append({})
            pieces[-1][parameters] = crossings[parameters]
        joined = parameters in crossings
    return pieces


def explained_by_ratio(points: Sequence[MapPoint]) -> float:
    """Return the share of pairs of a gaining and a choking model that flops per parameter ranks correctly."""
    pairs = [
        (gaining, choking) for gaining in points if gaining.speedup >= 1 for choking in points if choking.speedup < 1
    ]
    if not pairs:
        return math.nan
    correct = sum(
        (gaining.flops_per_parameter > choking.flops_per_parameter)
        + 0.5 * (gaining.flops_per_parameter == choking.flops_per_parameter)
        for gaining, choking in pairs
    )
    return correct / len(pairs)


def words(points: Sequence[MapPoint], batch: int) -> list[str]:
    """Describe the map in sentences, the most important first."""
    certain = [point for point in points if point.certain]
    if not certain:
        of_models = "the only model" if len(points) == 1 else f"all {len(points)} models"
        return [f"uncertain for {of_models} whether a second device makes training faster: the timings are too noisy"]
    sentences = [_gains_and_chokes(certain, batch)]
    if uncertain := len(points) - len(certain):
        sentences[0] += f"; {uncertain} more {'is' if uncertain == 1 else 'are'} uncertain"
    crossings = {parameters: flops / parameters for parameters, flops in border(points).items()}
    if crossings:
        ratios = ", ".join(
            f"{_ratio_text(ratio)} at {short(parameters)} parameters" for parameters, ratio in crossings.items()
        )
        sentences.append(f"two devices are faster above this number of flops per sample and parameter: {ratios}")
    share = explained_by_ratio(certain)
    if not math.isnan(share):
        sentences.append(
            f"the study's rule (flops per parameter) ranks {share:.0%} of the pairs of a gaining and a choking model "
            "correctly"
        )
    return sentences


def _gains_and_chokes(points: Sequence[MapPoint], batch: int) -> str:
    """Count the gaining and choking models, with the best and the worst of them."""
    gaining = [point for point in points if point.speedup >= 1]
    choking = len(points) - len(gaining)
    best, worst = max(points, key=lambda point: point.speedup), min(points, key=lambda point: point.speedup)
    ends = f"at best {best.speedup:.2f}x ({_model(best)})", f"at worst {worst.speedup:.2f}x ({_model(worst)})"
    if not choking:
        return f"all {len(points)} models gain from a second device at batch {batch}: {ends[0]}, {ends[1]}"
    if not gaining:
        return f"none of {len(points)} models gains from a second device at batch {batch}: {ends[0]}, {ends[1]}"
    gain, choke = ("gains" if len(gaining) == 1 else "gain"), ("chokes" if choking == 1 else "choke")
    return (
        f"{len(gaining)} of {len(points)} models {gain} from a second device at batch {batch}, {ends[0]}; "
        f"{choking} {choke}, {ends[1]}"
    )


def _ratio_text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def beside_the_study(
    points: Sequence[MapPoint], known: Mapping[str, tuple[int, int]], planned: Sequence[tuple[int, int]] = ()
) -> list[str]:
    """Compare the study's two models with the closest synthetic ones.

    `known` maps names to (parameters, flops per sample); `planned` lists these pairs for all models of the map.
    """
    sentences = []
    for name, gained in STUDIED.items():
        location = known[name]
        nearest = min(points, key=lambda point: _decades((point.parameters, point.flops), location))
        if _decades((nearest.parameters, nearest.flops), location) > NEAR_DECADES:
            sentences.append(_no_comparison(name, location, planned))
            continue
        if not nearest.certain:
            verdict = "uncertain"
        elif (nearest.speedup >= 1) == gained:
            verdict = f"it {'gains' if gained else 'chokes'}, as {name} does in the study"
        else:
            verdict = (
                f"it {'chokes, but' if gained else 'gains, but'} {name} {'gains' if gained else 'chokes'} in the study"
            )
        sentences.append(f"the model closest to {name} ({_model(nearest)}): {nearest.speedup:.2f}x, {verdict}")
    return sentences


def _no_comparison(name: str, location: tuple[int, int], planned: Sequence[tuple[int, int]]) -> str:
    nearest = min(planned, key=lambda candidate: _decades(candidate, location), default=None)
    if nearest is None or _decades(nearest, location) > NEAR_DECADES:
        return f"no model of the map is close to {name}"
    return f"no result for {name}: the closest model ({_text(*nearest)}) has not been measured"


def _decades(one: tuple[int, int], other: tuple[int, int]) -> float:
    """Return the distance of two places in decades, along the axis where it is larger."""
    return max(abs(math.log10(left / right)) for left, right in zip(one, other, strict=True))


def _model(point: MapPoint) -> str:
    return _text(point.parameters, point.flops)


def _text(parameters: int, flops: int) -> str:
    return f"{short(parameters)} parameters, {short(flops)} flops"


def short(value: float) -> str:
    """Format with a unit prefix: '12 M', '1.2 G'."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


UNITS = ("parameters", "flops")
CHOKE_TO_GAIN = LinearSegmentedColormap.from_list("choke to gain", [COLOURS[1], "#F4F4F2", COLOURS[0]])

ROOM = 0.16
"""Fraction of an axis reserved for arrows to models outside the tiles."""
WORST, BEST = 0.25, 2.0
"""Speed-ups at the ends of the colour scale."""


def shade(speedup: float) -> float:
    """Map a speed-up to the colour scale: 0 for 0.25x or less, 1/2 for 1x, 1 for 2x or more."""
    return min(1.0, speedup / BEST) if speedup >= 1 else max(0.0, 0.5 * (speedup - WORST) / (1 - WORST))


def edges(centres: Sequence[int]) -> list[float]:
    """Return the edges of the tiles, half-way between neighbouring centres on a logarithmic axis."""
    inner = [math.sqrt(left * right) for left, right in pairwise(centres)]
    if not inner:
        return [centres[0] / 2, centres[0] * 2]
    return [centres[0] ** 2 / inner[0], *inner, centres[-1] ** 2 / inner[-1]]


def beyond(value: float, ends: Sequence[float]) -> int:
    """Return -1 if a value is below the tiles, 1 if it is above them, else 0."""
    return (value > ends[-1]) - (value < ends[0])


def limits(marked: Sequence[int], ends: Sequence[float]) -> tuple[float, float]:
    """Return the limits of an axis: all tiles, with space for arrows to marked models outside them."""
    sides = {beyond(value, ends) for value in marked}
    room = (ends[-1] / ends[0]) ** ROOM
    return ends[0] / (room if -1 in sides else 1), ends[-1] * (room if 1 in sides else 1)


def border_line(piece: Mapping[int, float], sizes: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return x and y of the border: horizontal across each column of tiles, vertical between columns."""
    columns = [(edges(sizes)[sizes.index(size) :][:2], flops) for size, flops in piece.items()]
    return [end for ends, _ in columns for end in ends], [flops for _, flops in columns for _ in range(2)]


def clipped(speedups: Sequence[float]) -> Literal["neither", "min", "max", "both"]:
    """Return the ends of the colour scale that some speed-ups exceed."""
    below, above = min(speedups) < WORST, max(speedups) > BEST
    return "both" if below and above else "min" if below else "max" if above else "neither"


@styled
def draw_map(
    points: Sequence[MapPoint],
    marked: Mapping[str, tuple[int, int]],
    title: str,
    machine: str,
    subtitle: str,
    out: Path,
    when: str | None = None,
) -> list[Path]:
    """Draw the map; `marked` are known models, name -> (parameters, flops per sample)."""
    figure, [axes] = new_figure(title, machine, width=8.2, height=6.0, when=when, subtitle=subtitle)
    sizes, computes = sorted({point.parameters for point in points}), sorted({point.flops for point in points})
    shades = np.full((len(computes), len(sizes)), np.nan)
    for point in points:
        shades[computes.index(point.flops), sizes.index(point.parameters)] = shade(point.speedup)
    tiles = axes.pcolormesh(
        edges(sizes), edges(computes), shades, cmap=CHOKE_TO_GAIN, norm=Normalize(0, 1), edgecolors=PAPER, linewidth=1.5
    )
    for point in points:
        corner = edges(sizes)[sizes.index(point.parameters)], edges(computes)[computes.index(point.flops)]
        ink = PAPER if abs(shade(point.speedup) - 0.5) > 0.4 else INK
        axes.annotate(
            f"{point.speedup:.2f}{'' if point.certain else '?'}",
            corner,
            (5, 5),
            textcoords="offset points",
            fontsize=9,
            color=ink,
        )
    for piece in border_pieces(points):
        axes.plot(*border_line(piece, sizes), color=INK, linewidth=1.4, linestyle=(0, (4, 3)))
    for name, location in marked.items():
        mark(axes, name, location, (edges(sizes), edges(computes)))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*limits([parameters for parameters, _ in marked.values()], edges(sizes)))
    axes.set_ylim(*limits([flops for _, flops in marked.values()], edges(computes)))
    axes.spines[:].set_visible(False)
    axes.set_xlabel("parameters")
    axes.set_ylabel("flops per sample, forward")
    extend = clipped([point.speedup for point in points])
    bar = figure.colorbar(tiles, ax=axes, ticks=[0, shade(0.5), 0.5, 0.75, 1], shrink=0.8, extend=extend)
    bar.ax.set_yticklabels(["0.25x", "0.5x", "1x", "1.5x", "2x"])
    bar.set_label("speed-up on two devices")
    return save(figure, out, "choke-map")


def mark(axes: Axes, name: str, location: tuple[int, int], ends: tuple[Sequence[float], Sequence[float]]) -> None:
    """Mark a model with a star or, if it is outside the tiles, with a labelled arrow at their edge."""
    directions = [beyond(value, axis_ends) for value, axis_ends in zip(location, ends, strict=True)]
    x, y = (min(max(value, axis_ends[0]), axis_ends[-1]) for value, axis_ends in zip(location, ends, strict=True))
    text, offset, sides = name, (8, 6), ("left", "baseline")
    if any(directions):
        tip = (24 * directions[0], 24 * directions[1])
        arrow = {"arrowstyle": "<|-", "lw": 2, "color": INK}
        axes.annotate("", (x, y), tip, textcoords="offset points", arrowprops=arrow)
        far = [
            f"{short(value)} {unit}"
            for value, unit, direction in zip(location, UNITS, directions, strict=True)
            if direction
        ]
        text = "\n".join([name, *far])  # at the tip of a vertical arrow, above a horizontal one
        offset = (tip[0], tip[1] + 3 * directions[1]) if directions[1] else (tip[0], 7)
        across = "center" if not directions[0] else "right" if directions[0] > 0 else "left"
        sides = across, "top" if directions[1] < 0 else "bottom"
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


STRATEGY, DEVICES, BATCH = "mirrored", 2, 8
PARAMETERS = (30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)
FLOPS = (300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000, 300_000_000, 1_000_000_000)
QUICK_PARAMETERS = (100_000, 1_000_000, 10_000_000)
QUICK_FLOPS = (1_000_000, 10_000_000, 100_000_000)
KNOWN_MODELS = ("linear", "conv", "unet", "transformer")


def run(
    out: Path, quick: bool, log: Callable[[str], None], on_progress: Callable[[Progress], None] | None = None
) -> ExperimentResult:
    """Run the experiment, resuming if the folder has measurements.

    It takes about a minute if `quick`, else most of an hour.
    """
    used, cores = cores_in_use(), len(allowed_cores())
    sizes, computes = (QUICK_PARAMETERS, QUICK_FLOPS) if quick else (PARAMETERS, FLOPS)
    log(f"measuring {len(sizes) * len(computes)} synthetic models on one and on two devices at batch {BATCH} ...")
    result = measure(
        [name_of(parameters, flops) for parameters, flops in product(sizes, computes)],
        out=out,
        strategy=("single", STRATEGY),
        devices=[DEVICES],
        batch=[BATCH],
        execution="eager",  # several devices run eagerly, so the baseline must not use a CUDA graph
        interval=5.0 if quick else 2.0,
        budget=2.0 if quick else 20.0,
        budget_total=80.0 if quick else None,
        resume=True,
        on_progress=on_progress,
        on_cell=lambda cell: log(f"  {cell_line(cell)}"),
    )
    all_series = series_of(Store.read(out), Store.environments(out))
    series = [one_series for one_series in all_series if location_of(one_series.workload)]
    points = points_of(series)
    if not points:
        raise RunFailed(
            f"no model was measured on both one and {DEVICES} devices; see the reasons in {out / 'measurements.jsonl'}"
        )
    rough = roughness(used, cores, result.measurements, result.not_begun)
    remarks = [*load_remarks(used, cores), *not_begun_remarks(result.not_begun), *remarks_on(result.measurements)]
    when = when_text([cell.started for cell in result.measurements])
    planned = list(product(sizes, computes))
    return conclude(out, points, series[0].machine, remarks, len(result.failed), rough, when, planned)


def name_of(parameters: int, flops: int) -> str:
    return f"synthetic:parameters={parameters},flops={flops}"


def location_of(workload: str) -> tuple[int, int] | None:
    """Return parameters and flops of a synthetic model of the map; None for other workloads in the folder."""
    spec = parse_spec(workload)
    if spec.name != "synthetic" or not {"parameters", "flops"} <= set(spec.options):
        return None
    return int(spec.options["parameters"]), int(spec.options["flops"])


def points_of(series: Sequence[Series]) -> list[MapPoint]:
    """Return the models that were timed on one and on two devices, with their speed-ups."""
    points = []
    for one_series in series:
        location = location_of(one_series.workload)
        if location is None or one_series.strategy != STRATEGY:
            continue
        for speedup in speedups(one_series):
            if (speedup.devices, speedup.batch) == (DEVICES, BATCH):
                points.append(MapPoint(*location, speedup.speedup, speedup.slower or speedup.faster))
    return sorted(points, key=lambda point: (point.parameters, point.flops))


def conclude(
    out: Path,
    points: Sequence[MapPoint],
    machine: str,
    remarks: Sequence[str] = (),
    failed: int = 0,
    rough: str = "",
    when: str | None = None,
    planned: Sequence[tuple[int, int]] = (),
) -> ExperimentResult:
    """Draw the map and write the findings.

    `rough` is appended to the headline, `when` is the day of the measurements, `planned` lists the models of the map.
    """
    descriptions = {name: describe(name) for name in KNOWN_MODELS}
    marked = {name: (model.parameters, model.flops_per_sample) for name, model in descriptions.items()}
    findings = [*words(points, BATCH), *beside_the_study(points, marked, planned)]
    title = f"Speed-up of synthetic models on two devices ({STRATEGY}, global batch {BATCH})"
    subtitle = "Tiles: synthetic models (?: uncertain). Stars and arrows: known models."
    if border_pieces(points):
        subtitle += " Dashed: equal speed."
    figures = draw_map(points, marked, title, machine, subtitle, out, when)
    page, numbers = out / "findings.md", out / "choke-map.json"
    computes = sorted({point.flops for point in points})
    result = ExperimentResult(
        "choke-map",
        [*findings, *remarks],
        ["parameters", *(f"{short(flops)} flops" for flops in computes)],
        [_row(parameters, computes, points) for parameters in sorted({point.parameters for point in points})],
        figures,
        [page, numbers],
        {"spots": [asdict(point) for point in points], "known_models": marked, "batch": BATCH, "strategy": STRATEGY},
        headline=f"Found on {machine}: {findings[0]}{rough}",
        failed=failed,
    )
    write_atomically(numbers, json.dumps(result.to_json(), indent=2).encode())
    write_markdown(page, result.to_markdown())
    return result


def _row(parameters: int, computes: Sequence[int], points: Sequence[MapPoint]) -> list[str]:
    row = [point for point in points if point.parameters == parameters]
    texts = {point.flops: f"{point.speedup:.2f}x{'' if point.certain else ' ?'}" for point in row}
    return [short(parameters), *(texts.get(flops, "-") for flops in computes)]
