"""Files of `scalewise tune --out`: a bar chart of the trials and the JSON document."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

from scalewise.core.files import write_atomically
from scalewise.core.units import seconds_text
from scalewise.reporting.figure_style import COLOURS, FAINT, INK, new_figure, save, styled
from scalewise.tuning.result import TuneResult

NAME = "tune"
"""Name of the files, without suffix."""
INCHES_PER_BAR = 0.42
OFFER, BEST, OTHER = COLOURS[4], COLOURS[2], COLOURS[0]
"""Colours of lower precision, of the selected options, and of other options that preserve the mathematics."""


def write_files(result: TuneResult, folder: Path) -> list[Path]:
    """Write the chart as PNG and SVG and the JSON document to the folder."""
    document = folder / f"{NAME}.json"
    write_atomically(document, json.dumps(result.to_json(), indent=2).encode())
    return [document, *save(bar_chart(result), folder, NAME)]


@styled
def bar_chart(result: TuneResult) -> Figure:
    """Draw the step time of every trial with its 95% interval, and the roofline."""
    trials = [trial for trial in result.trials if trial.skipped is None]
    figure, [axes] = new_figure(
        f"{result.workload}, batch {result.batch:,}, {result.precision}: {result.best.speedup:.2g}x on one device",
        result.device,
        height=1.6 + INCHES_PER_BAR * len(trials),
        when=result.measured_at[:10],
    )
    for row, trial in enumerate(trials):
        times = trial.step_seconds
        lower = trial.options.precision != result.precision
        colour = BEST if trial is result.best else OFFER if lower else OTHER
        axes.barh(row, 1e3 * times.median, color=colour, height=0.7)
        reach = [[1e3 * (times.median - times.low)], [1e3 * (times.high - times.median)]]
        axes.errorbar(1e3 * times.median, row, xerr=reach, fmt="none", ecolor=INK, elinewidth=1.1, capsize=3)
        changes = ", changes the result" if lower else ""
        text = f"{seconds_text(times.median)}, {trial.speedup:.2f}x{changes}"
        axes.annotate(text, (1e3 * times.high, row), (6, 0), textcoords="offset points", va="center", color=INK)
    if result.roofline:
        axes.axvline(1e3 * result.roofline.seconds, color=FAINT, linestyle="--", linewidth=1.2)
        axes.annotate(
            "roofline",
            (1e3 * result.roofline.seconds, -0.5),
            (3, 2),
            textcoords="offset points",
            color=FAINT,
            fontsize=9,
        )
    axes.set_yticks(range(len(trials)), [trial.options.label for trial in trials])
    axes.set_ylim(len(trials) - 0.5, -0.75)
    axes.set_xlim(0, 1.7e3 * max(trial.step_seconds.high for trial in trials))
    axes.set_xlabel("milliseconds per step")
    return figure
