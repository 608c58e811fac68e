"""The U-Net's runs, drawn: beside the survey's table, by phases on every device, and over models that grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from scalewise.experiments.unet_runs import NAMES, Ran, as_first_device_sees
from scalewise.experiments.unet_sweep import Spot
from scalewise.figures.phases import LOOKS
from scalewise.figures.style import (
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
from scalewise.phases import PHASES
from scalewise.published.unet import SINGLE, SURVEY, SURVEY_EPOCH_SECONDS

LOOK = {name: (INK, *COLOURS)[number] for number, name in enumerate(NAMES)}
MARKER = {name: MARKERS[number] for number, name in enumerate(NAMES)}


@styled
def draw_table(ran: Mapping[str, Ran], machine: str, out: Path) -> list[Path]:
    """Seconds per epoch, the survey's beside those measured."""
    figure, [theirs, ours] = new_figure(
        "A U-Net on one device and on two",
        f"right: {machine}",
        columns=2,
        width=8.6,
        height=3.9,
        subtitle="Seconds per epoch, and how many times as fast as one device. Left as published, right measured here.",
    )
    _bars(theirs, SURVEY_EPOCH_SECONDS, f"the survey: {SURVEY.machine}")
    _bars(ours, {name: ran[name].epoch_seconds for name in NAMES if name in ran}, "here")
    theirs.set_ylabel("seconds per epoch")
    return save(figure, out, "unet-table")


def _bars(axes: Axes, seconds: Mapping[str, float], title: str) -> None:
    names = [NAMES[name].replace(" ", "\n") for name in seconds]
    bars = axes.bar(names, list(seconds.values()), color=[LOOK[name] for name in seconds], width=0.66)
    alone = seconds[SINGLE]
    axes.axhline(alone, color=FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    for label in axes.bar_label(bars, [f"{each:.4g} s" for each in seconds.values()], fontsize=9, padding=2):
        label.set_bbox({"facecolor": PAPER, "edgecolor": "none", "pad": 1})  # over the dashed line
    axes.bar_label(
        bars,
        [f"{alone / each:.2f}x" if name != SINGLE else "" for name, each in seconds.items()],
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
def draw_steps(ran: Mapping[str, Ran], machine: str, out: Path) -> list[Path]:
    """One step on every device, from left to right as it went, and the part of it in which the device computes."""
    rows = [(name, rank) for name in NAMES if name in ran for rank in range(len(ran[name].ranks))]
    figure, [axes] = new_figure(
        "Who works when: one step of the U-Net on every device",
        machine,
        width=8.8,
        height=1.7 + 0.4 * len(rows),
        subtitle="Blue: computing. Orange: messages. Grey: waiting; what was before the first device began is last.",
    )
    seen: dict[str, BarContainer] = {}
    steps = {name: as_first_device_sees(each.step) for name, each in ran.items()}
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
                color=LOOKS[phase],
                edgecolor=PAPER,
                linewidth=0.3,
                height=0.8,
            )
            seen.setdefault(phase, patch)
        end = max((span.start + span.seconds for span in own), default=0.0)
        axes.annotate(
            f"computes {ran[name].computing_shown(rank):.0%}",
            (end * 1e3, place),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=FAINT,
        )
    labels = [f"{NAMES[name]}, device {rank}" if len(ran[name].ranks) > 1 else NAMES[name] for name, rank in rows]
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1e3 * 1.2)
    axes.set_xlabel("milliseconds since the first device began the step")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    ordered = [phase for phase in PHASES if phase in seen]
    figure.legend(
        [seen[phase].patches[0] for phase in ordered],
        ordered,
        loc="outside right upper",
        title="phase",
        alignment="left",
    )
    return save(figure, out, "unet-steps")


@styled
def draw_sweep(spots: Sequence[Spot], limit_GB: float, batch: int, machine: str, out: Path) -> list[Path]:
    """Speed above, memory below; a cross is a model that did not fit."""
    figure, [speed, memory] = new_figure(
        "A U-Net that grows: who is quickest, and who still fits",
        machine,
        rows=2,
        width=8.2,
        height=7.0,
        subtitle=f"Batch {batch}, two devices with {limit_GB:g} GB each. Crosses: out of memory.",
    )
    speed.sharex(memory)
    sizes = sorted({spot.parameters for spot in spots})
    slowest = min(spot.samples_per_second for spot in spots if spot.samples_per_second)
    full = 0
    for name in [name for name in NAMES if any(spot.strategy == name for spot in spots)]:
        own = sorted((spot for spot in spots if spot.strategy == name), key=lambda spot: spot.parameters)
        look: dict[str, Any] = {"color": LOOK[name], "marker": MARKER[name]}
        ran = [spot for spot in own if spot.samples_per_second]
        rates = [spot.samples_per_second or 0.0 for spot in ran]
        speed.plot([spot.parameters for spot in ran], rates, label=NAMES[name], **look)
        stopped = [spot for spot in own if spot.status == "oom"]
        for spot in stopped[:1]:
            speed.plot(
                spot.parameters,
                slowest / 1.6 ** (1 + full),
                marker="x",
                color=LOOK[name],
                markersize=9,
                markeredgewidth=2.4,
                markeredgecolor=LOOK[name],
            )
            speed.annotate(
                NAMES[name],
                (spot.parameters, slowest / 1.6 ** (1 + full)),
                (-9, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=8.5,
                color=LOOK[name],
            )
            full += 1
        planned = [spot for spot in own if spot.planned_bytes]
        memory.plot(
            [spot.parameters for spot in planned],
            [(spot.planned_bytes or 0) / 1e9 for spot in planned],
            color=LOOK[name],
            linestyle="-",
            linewidth=1.4,
        )
        counted = [spot for spot in own if spot.measured_bytes]
        memory.plot(
            [spot.parameters for spot in counted],
            [(spot.measured_bytes or 0) / 1e9 for spot in counted],
            linestyle="none",
            **look,
        )
        memory.plot(
            [spot.parameters for spot in stopped],
            [(spot.planned_bytes or 0) / 1e9 for spot in stopped],
            linestyle="none",
            marker="x",
            color=LOOK[name],
            markersize=8,
            markeredgewidth=2.4,
            markeredgecolor=LOOK[name],
        )
    memory.axhline(limit_GB, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    memory.annotate(
        f"a device has {limit_GB:g} GB",
        (sizes[0], limit_GB),
        (0, -12),
        textcoords="offset points",
        fontsize=8.5,
        color=INK,
    )
    for axes, label in ((speed, "samples per second"), (memory, "GB on the fullest device")):
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
