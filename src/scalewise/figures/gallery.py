"""All figures that a set of series allows, written to a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from scalewise.figures.bars import draw_bars
from scalewise.figures.epochs import draw_epochs
from scalewise.figures.phases import draw_phases
from scalewise.figures.scaling import draw_scaling
from scalewise.figures.speedups import draw_speedups
from scalewise.figures.style import file_name, save
from scalewise.figures.transfer import draw_transfer
from scalewise.findings.cell import Series
from scalewise.findings.speedup import best_speedups, chokes
from scalewise.findings.traffic import transfer_fit

NO_LINE = "Too few steps were timed to draw a line through these cells."


def draw_all(series: Sequence[Series], folder: Path) -> list[Path]:
    """PNG and SVG of each, in the order in which they are told; what the cells do not show is not drawn."""
    paths: list[Path] = []
    for each in series:
        for name, figure in _figures(each).items():
            if figure:
                paths += save(figure, folder, file_name(name, each.workload, each.strategy))
    return paths


def draw_all_phases(series: Sequence[Series], folder: Path) -> list[Path]:
    """One figure per workload, with all of its strategies that may be compared."""
    paths: list[Path] = []
    for workload, kin in dict.fromkeys((each.workload, each.kin) for each in series):
        figure = draw_phases([each for each in series if (each.workload, each.kin) == (workload, kin)])
        if figure:
            paths += save(figure, folder, file_name("phases", workload, kin))
    return paths


def _figures(series: Series) -> dict[str, Figure | None]:
    """The first clause of what was found is the subtitle."""
    choking, best, fit = chokes(series), best_speedups(series), transfer_fit(series)
    return {
        "epochs": draw_epochs(series, _clause(choking.sentence, ", worst") if choking else ""),
        "bars": draw_bars(series),
        "speedups": draw_speedups(series, _clause(best.sentence, ";") if best else ""),
        "scaling": draw_scaling(series),
        "transfer": draw_transfer(series, _clause(fit.sentence, ";") if fit else NO_LINE),
    }


def _clause(sentence: str, end: str) -> str:
    clause = sentence.partition(end)[0]
    return clause[:1].upper() + clause[1:]
