"""Figures of the U-Net comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from scalewise.core.timeline import PHASES
from scalewise.published.tables import SINGLE, SURVEY, SURVEY_EPOCH_SECONDS
from scalewise.reporting.figure_style import (
    COLOURS,
    FAINT,
    INK,
    MARKERS,
    PAPER,
    RULE,
    legend_above,
    new_figure,
    save,
    styled,
)
from scalewise.reporting.step_figures import LOOKS as PHASE_COLOURS
from scalewise.studies.unet_runs import NAMES, StrategyRun, SweepPoint, as_first_device_sees

COLOUR_OF = {name: (INK, *COLOURS)[number] for number, name in enumerate(NAMES)}
MARKER = {name: MARKERS[number] for number, name in enumerate(NAMES)}


@styled
def draw_table(runs: Mapping[str, StrategyRun], machine: str, out: Path) -> list[Path]:
    """Draw the epoch times of the survey beside those measured."""
    figure, [survey, here] = new_figure(
        "Epoch time of a U-Net on one and on two devices",
        f"right: {machine}",
        columns=2,
        width=8.6,
        height=3.9,
        subtitle="In the bars: speed-up over one device. Left: published. Right: measured here.",
    )
    _bars(survey, SURVEY_EPOCH_SECONDS, f"the survey: {SURVEY.machine}")
    _bars(here, {name: runs[name].epoch_seconds for name in NAMES if name in runs}, "here")
    survey.set_ylabel("seconds per epoch")
    return save(figure, out, "unet-table")


def _bars(axes: Axes, seconds: Mapping[str, float], title: str) -> None:
    names = [NAMES[name].replace(" ", "\n") for name in seconds]
    bars = axes.bar(names, list(seconds.values()), color=[COLOUR_OF[name] for name in seconds], width=0.66)
    single = seconds[SINGLE]
    axes.axhline(single, color=FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    for label in axes.bar_label(bars, [f"{value:.4g} s" for value in seconds.values()], fontsize=9, padding=2):
        label.set_bbox({"facecolor": PAPER, "edgecolor": "none", "pad": 1})  # over the dashed line
    axes.bar_label(
        bars,
        [f"{single / value:.2f}x" if name != SINGLE else "" for name, value in seconds.items()],
        fontsize=10,
        fontweight="bold",
        color=PAPER,
        label_type="center",
    )
    axes.set_title(title)
    axes.set_ylim(0, max(seconds.values()) * 1.14)
    axes.spines["left"].set_color(RULE)
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y")


@styled
def draw_steps(runs: Mapping[str, StrategyRun], machine: str, out: Path) -> list[Path]:
    """Draw the timeline of one step on every device, with the share of the step in which the device computes."""
    rows = [(name, rank) for name in NAMES if name in runs for rank in range(len(runs[name].ranks))]
    figure, [axes] = new_figure(
        "One step of the U-Net on every device",
        machine,
        width=8.8,
        height=1.7 + 0.4 * len(rows),
        subtitle="Blue: computing. Orange: communication. Grey: idle. Earlier work of other devices is at the end.",
    )
    bar_of_phase: dict[str, BarContainer] = {}
    steps = {name: as_first_device_sees(run.step) for name, run in runs.items()}
    longest = max(span.start + span.seconds for step in steps.values() for span in step)
    place, places, before = 0.0, [], ""
    for name, rank in rows:
        place += 1.4 if before and before != name else 1.0
        before = name
        places.append(place)
        own = [span for span in steps[name] if span.rank == rank]
        for phase in dict.fromkeys(span.phase for span in own):
            chosen = [span for span in own if span.phase == phase]
            patch = axes.barh(
                [place] * len(chosen),
                [span.seconds * 1e3 for span in chosen],
                left=[span.start * 1e3 for span in chosen],
                color=PHASE_COLOURS[phase],
                edgecolor=PAPER,
                linewidth=0.3,
                height=0.8,
            )
            bar_of_phase.setdefault(phase, patch)
        end = max((span.start + span.seconds for span in own), default=0.0)
        axes.annotate(
            f"computing {runs[name].computing_shown(rank):.0%}",
            (end * 1e3, place),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=FAINT,
        )
    labels = [f"{NAMES[name]}, device {rank}" if len(runs[name].ranks) > 1 else NAMES[name] for name, rank in rows]
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1e3 * 1.2)
    axes.set_xlabel("milliseconds since the start of the step on the first device")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    ordered = [phase for phase in PHASES if phase in bar_of_phase]
    figure.legend(
        [bar_of_phase[phase].patches[0] for phase in ordered],
        ordered,
        loc="outside right upper",
        title="phase",
        alignment="left",
    )
    return save(figure, out, "unet-steps")


@styled
def draw_sweep(points: Sequence[SweepPoint], limit_GB: float, batch: int, machine: str, out: Path) -> list[Path]:
    """Draw throughput and memory over the model size, with crosses where memory ran out."""
    figure, [speed, memory] = new_figure(
        "U-Nets of growing size: throughput and memory",
        machine,
        rows=2,
        width=8.2,
        height=7.0,
        subtitle=f"Batch {batch}, two devices with {limit_GB:g} GB each. Crosses: out of memory.",
    )
    speed.sharex(memory)
    sizes = sorted({point.parameters for point in points})
    slowest = min(point.samples_per_second for point in points if point.samples_per_second)
    crosses = 0
    for name in [name for name in NAMES if any(point.strategy == name for point in points)]:
        own = sorted((point for point in points if point.strategy == name), key=lambda point: point.parameters)
        look: dict[str, Any] = {"color": COLOUR_OF[name], "marker": MARKER[name]}
        measured = [point for point in own if point.samples_per_second]
        rates = [point.samples_per_second or 0.0 for point in measured]
        speed.plot([point.parameters for point in measured], rates, label=NAMES[name], **look)
        out_of_memory = [point for point in own if point.status == "oom"]
        for point in out_of_memory[:1]:
            speed.plot(
                point.parameters,
                slowest / 1.6 ** (1 + crosses),
                marker="x",
                color=COLOUR_OF[name],
                markersize=9,
                markeredgewidth=2.4,
                markeredgecolor=COLOUR_OF[name],
            )
            speed.annotate(
                NAMES[name],
                (point.parameters, slowest / 1.6 ** (1 + crosses)),
                (-9, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=8.5,
                color=COLOUR_OF[name],
            )
            crosses += 1
        planned = [point for point in own if point.planned_bytes]
        memory.plot(
            [point.parameters for point in planned],
            [(point.planned_bytes or 0) / 1e9 for point in planned],
            color=COLOUR_OF[name],
            linestyle="-",
            linewidth=1.4,
        )
        with_memory = [point for point in own if point.measured_bytes]
        memory.plot(
            [point.parameters for point in with_memory],
            [(point.measured_bytes or 0) / 1e9 for point in with_memory],
            linestyle="none",
            **look,
        )
        memory.plot(
            [point.parameters for point in out_of_memory],
            [(point.planned_bytes or 0) / 1e9 for point in out_of_memory],
            linestyle="none",
            marker="x",
            color=COLOUR_OF[name],
            markersize=8,
            markeredgewidth=2.4,
            markeredgecolor=COLOUR_OF[name],
        )
    memory.axhline(limit_GB, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    memory.annotate(
        f"limit: {limit_GB:g} GB per device",
        (sizes[0], limit_GB),
        (0, -12),
        textcoords="offset points",
        fontsize=8.5,
        color=INK,
    )
    for axes, label in ((speed, "samples per second"), (memory, "GB per device (largest)")):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(FixedLocator(sizes))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:.3g} M")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylabel(label)
        axes.grid(axis="y")
    memory.set_title("Lines: planned. Marks: measured.", fontsize=9.5, color=FAINT)
    memory.set_xlabel("parameters")
    legend_above(speed)
    return save(figure, out, "unet-sweep")
