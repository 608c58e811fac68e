"""Scores of one-GPU predictions by table, precision, quality and GPU, beside two baselines. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from scalewise.predict.gpu_model import Quality
from scalewise.published.gpu_steps import ONE_GPU_SOURCES
from scalewise.validation.one_gpu import (
    Prediction,
    Scored,
    calibrated,
    grouped,
    same_step,
    scaled,
    scored_table,
    specified,
    specified_on_unknown_hosts,
    with_measured_host,
)

RANKED_APART = 1.2
"""GPUs whose measured seconds differ by less than this factor are not ranked."""
PARTS = ("fp32, tf32", "16-bit")
LEGEND = (
    "inside 90%: percent of cells inside their 90% interval; width: median of its upper end over the prediction. peak, "
    "roofline: median error of the time at peak FLOPS and of the roofline, each times the one constant that fits the "
    "same cells best. ranked: percent of pairs of GPUs, measured more than 20% apart on the same step, in the right "
    "order. No cell is predicted with constants or intervals that were fitted to its GPU (one_gpu_torchvision) or to "
    "its table (all others)."
)
FITTED = {
    "one_gpu_torchvision": "single operators of another source, also on V100 and A100; corrections to the other GPUs "
    "of this table and to the other tables; host time from one cell per host",
    "one_gpu_transformers": "single operators of the same source on the same GPUs; corrections to the other tables",
}
"""Which constants were fitted to what, by table."""
FITTED_ELSEWHERE = "single operators and corrections of other tables; no cell of this one"


@dataclass(frozen=True)
class ScoreRow:
    """Errors of one part of a table at one quality."""

    table: str
    part: str
    quality: Quality
    basis: str
    """What is known beside the specification."""
    cells: int
    median_error_percent: float
    p90_error_percent: float
    worst_error_percent: float
    inside_interval_percent: float
    interval_factor: float
    """Median upper end of the intervals, as a factor of the prediction."""
    peak_baseline_percent: float
    roofline_baseline_percent: float
    ranked_right_percent: float | None
    targets: Mapping[str, float]
    """Targets in percent: largest `median` and `p90`, smallest `ranked`."""

    @property
    def targets_met(self) -> dict[str, bool]:
        values = {"median": self.median_error_percent, "p90": self.p90_error_percent}
        return {
            name: (self.ranked_right_percent or 0.0) >= target if name == "ranked" else values[name] <= target
            for name, target in self.targets.items()
        }

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "targets": dict(self.targets), "targets_met": self.targets_met}


@dataclass(frozen=True)
class OneGpuTable:
    """Scores of one published table of steps on one GPU."""

    name: str
    predictions: Sequence[Prediction]
    """Predictions from the specification, over which the scores of the whole table are computed."""
    rows: Sequence[ScoreRow]
    source: str
    fitted: str

    @property
    def inside_percent(self) -> float:
        return 100 * float(np.mean([prediction.inside for prediction in self.predictions]))

    def to_json(self) -> dict[str, Any]:
        """Return the keys of every table of `validate`, and the scores by quality, GPU and precision."""
        errors = [prediction.error_percent for prediction in self.predictions]
        baselines = {"peak FLOPS": peak_baseline(self.predictions), "roofline": roofline_baseline(self.predictions)}
        return {
            "name": self.name,
            "cells": len(errors),
            "in_sample": "no",
            "fitted": self.fitted,
            "median_error_percent": float(np.median(errors)),
            "p90_error_percent": float(np.quantile(errors, 0.9)),
            "worst_error_percent": max(errors),
            "inside_interval_percent": self.inside_percent,
            "decisions_right_percent": ranking_percent([prediction.scored for prediction in self.predictions]),
            "chokes": 0,
            "choke_precision_percent": None,
            "choke_recall_percent": None,
            "decisions": {},
            "inside_interval_low_efficiency_percent": None,
            "best_strategy": {"right": 0, "of": 0},
            "baselines": {name: {"median_error_percent": value} for name, value in baselines.items()},
            "targets": self.rows[0].targets,
            "parts": {row.part: _part(row) for row in self.rows if row.quality == "specification"},
            "source": self.source,
            "devices": "one",
            "qualities": [row.to_json() for row in self.rows],
            "gpus": self._by(lambda scored: scored.gpu.name),
            "precisions": self._by(lambda scored: scored.cell.precision),
            "executions": self._by(lambda scored: scored.cell.execution),
        }

    def _by(self, key: Callable[[Scored], str]) -> dict[str, dict[str, float]]:
        """Scores from the specification of the cells with the same key."""
        groups: dict[str, list[Prediction]] = {}
        for prediction in self.predictions:
            groups.setdefault(key(prediction.scored), []).append(prediction)
        return {
            name: {
                "cells": len(group),
                "median_error_percent": median(prediction.error_percent for prediction in group),
                "inside_interval_percent": 100 * float(np.mean([prediction.inside for prediction in group])),
            }
            for name, group in groups.items()
        }

    def note(self) -> Text:
        """Median error by GPU, what was fitted, and the targets."""
        gpus = ", ".join(f"{name} {row['median_error_percent']:.0f}%" for name, row in self._by(_gpu_name).items())
        precisions = self._by(lambda scored: scored.cell.precision)
        note = Text.assemble((f"{self.name}: ", "bold"), f"median from the specification by GPU: {gpus}")
        if len(precisions) > 1:
            values = (f"{name} {row['median_error_percent']:.0f}%" for name, row in precisions.items())
            note.append(f"; by precision: {', '.join(values)}")
        for row in self.rows:
            for name, target in row.targets.items():
                met = row.targets_met[name]
                note.append(
                    f"; {row.part}, {row.basis}: {name} {'≥' if name == 'ranked' else '≤'} {target:g}% "
                    f"({'met' if met else 'missed'})",
                    "green" if met else "red",
                )
        note.append(f"; fitted: {self.fitted}.")
        return note


def _gpu_name(scored: Scored) -> str:
    return scored.gpu.name


def _part(row: ScoreRow) -> dict[str, float]:
    return {
        "cells": row.cells,
        "median_error_percent": row.median_error_percent,
        "inside_interval_percent": row.inside_interval_percent,
    }


def one_gpu_grid(tables: Sequence[OneGpuTable]) -> RenderableType:
    """The scores as a table for the terminal, with a note per table."""
    grid = Grid(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    headings = ("cells", "median error", "p90 error", "inside 90%", "width", "peak rule", "roofline rule", "ranked")
    grid.add_column("\none device", no_wrap=True)
    for heading in headings:
        grid.add_column(heading.replace(" ", "\n") if " " in heading else f"\n{heading}", justify="right")
    for table in tables:
        grid.add_row(Text(table.name, "bold"))
        part = ""
        for row in table.rows:
            if row.part != part:
                part = row.part
                grid.add_row(Text(f" {part}"))
            ranked = "" if row.ranked_right_percent is None else f"{row.ranked_right_percent:.0f}"
            figures = (
                f"{row.cells}", f"{row.median_error_percent:.1f}", f"{row.p90_error_percent:.1f}",
                f"{row.inside_interval_percent:.0f}", f"x{row.interval_factor:.2f}",
                f"{row.peak_baseline_percent:.0f}", f"{row.roofline_baseline_percent:.0f}", ranked,
            )  # fmt: skip
            name = row.quality if row.basis == row.quality else f"{row.quality}, {row.basis}"
            grid.add_row(Text(f"  {name}"), *figures, style="" if row.quality == "specification" else "dim")
    notes = [Text.assemble(table.note(), style="dim") for table in tables]
    title = Text("Errors of predicted steps of one device, in percent of the measured time", "bold")
    return Group(title, Text(), grid, Text(), Text(LEGEND, "dim"), Text(), *notes)


def torchvision_table(name: str) -> OneGpuTable:
    """GPU-bound and host-bound cells apart; which is which follows from one measured cell per host."""
    plain = scored_table(name)
    measured = with_measured_host(plain)
    bound = {scored.cell for scored in measured if scored.estimate.host_bound}
    busy = [scored for scored in measured if not scored.estimate.host_bound]
    rows = rows_by_precision(
        name,
        busy,
        {"specification": ({"median": 15, "p90": 32, "ranked": 95}, {"median": 28, "ranked": 88})},
        "GPU-bound, ",
    )
    host_bound = [scored for scored in measured if scored.estimate.host_bound]
    unknown = [scored for scored in plain if scored.cell in bound]
    rows += [
        score_row(name, "host-bound", "specification", "specification", specified_on_unknown_hosts(unknown, name)),
        score_row(
            name, "host-bound", "calibrated", "host's time", specified(host_bound, name), {"median": 20},
            ranked=host_bound,
        ),
    ]  # fmt: skip
    return one_gpu_table(name, specified(busy, name), rows)


QualityTargets = Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]]
"""Quality -> targets in fp32 with TF32, and in 16 bits."""


def plain_table(name: str, targets: QualityTargets) -> OneGpuTable:
    cells = scored_table(name)
    return one_gpu_table(name, specified(cells, name), rows_by_precision(name, cells, targets))


def one_gpu_table(name: str, predictions: Sequence[Prediction], rows: Sequence[ScoreRow]) -> OneGpuTable:
    source = ONE_GPU_SOURCES[name]
    fitted = FITTED.get(name, FITTED_ELSEWHERE)
    return OneGpuTable(name, predictions, rows, f"{source.citation} ({source.year})", fitted)


def rows_by_precision(name: str, cells: Sequence[Scored], targets: QualityTargets, prefix: str = "") -> list[ScoreRow]:
    """Rows for fp32 with TF32 and for 16 bits: specification, calibrated by one model, scaled from another GPU."""
    rows = []
    for half, part in enumerate(PARTS):
        chosen = [scored for scored in cells if scored.half == bool(half)]
        if not chosen:
            continue
        qualities: tuple[tuple[Quality, str, Sequence[Prediction]], ...] = (
            ("specification", "specification", specified(chosen, name)),
            ("calibrated", "one model", calibrated(chosen, name)),
            ("scaled", "other GPU", scaled(chosen, name)),
        )
        for quality, basis, predictions in qualities:
            if predictions:
                goal = targets[quality][half] if quality in targets else {}
                ranked = chosen if quality == "specification" else ()
                rows.append(score_row(name, prefix + part, quality, basis, predictions, goal, ranked=ranked))
    return rows


def score_row(
    table: str,
    part: str,
    quality: Quality,
    basis: str,
    predictions: Sequence[Prediction],
    targets: Mapping[str, float] | None = None,
    *,
    ranked: Sequence[Scored] = (),
) -> ScoreRow:
    errors = [prediction.error_percent for prediction in predictions]
    ranking = ranking_percent(ranked)
    return ScoreRow(
        table=table,
        part=part,
        quality=quality,
        basis=basis,
        cells=len(errors),
        median_error_percent=round(float(np.median(errors)), 1),
        p90_error_percent=round(float(np.quantile(errors, 0.9)), 1),
        worst_error_percent=round(max(errors), 1),
        inside_interval_percent=round(100 * float(np.mean([prediction.inside for prediction in predictions])), 1),
        interval_factor=round(median(prediction.high / prediction.seconds for prediction in predictions), 2),
        peak_baseline_percent=peak_baseline(predictions),
        roofline_baseline_percent=roofline_baseline(predictions),
        ranked_right_percent=None if ranking is None else round(ranking, 1),
        targets=targets or {},
    )


def ranking_percent(cells: Iterable[Scored]) -> float | None:
    """Percent of pairs of GPUs, measured on one model in one precision and batch, that are ranked right."""
    right, pairs = 0, 0
    for group in grouped(cells, same_step).values():
        for first, second in combinations(group, 2):
            measured = first.cell.seconds / second.cell.seconds
            if first.gpu.name == second.gpu.name or max(measured, 1 / measured) < RANKED_APART:
                continue
            pairs += 1
            right += (first.seconds > second.seconds) == (measured > 1)
    return 100 * right / pairs if pairs else None


def peak_baseline(predictions: Sequence[Prediction]) -> float:
    return _baseline(predictions, lambda scored: scored.flops / scored.peak_TFLOPS)


def roofline_baseline(predictions: Sequence[Prediction]) -> float:
    return _baseline(predictions, lambda scored: scored.roofline_seconds)


def _baseline(predictions: Sequence[Prediction], seconds: Callable[[Scored], float]) -> float:
    """Median error of a formula times a constant, which is fitted to the same cells (an advantage for the baseline)."""
    ratios = [prediction.measured / seconds(prediction.scored) for prediction in predictions]
    constant = median(ratios)
    return round(median(100 * abs(constant / ratio - 1) for ratio in ratios), 1)


TABLES: dict[str, Callable[[str], OneGpuTable]] = {
    "one_gpu_torchvision": torchvision_table,
    "one_gpu_cnn": lambda name: plain_table(
        name,
        {
            "specification": ({"median": 20}, {"median": 30}),
            "calibrated": ({"median": 10}, {"median": 18}),
        },
    ),
    "tensorflow_2017": lambda name: plain_table(
        name, {"specification": ({"median": 20}, {}), "calibrated": ({"median": 10}, {})}
    ),
    "one_gpu_transformers": lambda name: plain_table(name, {"specification": ({"median": 10}, {})}),
    "torchtitan": lambda name: plain_table(name, {"specification": ({}, {"median": 15})}),
}
"""Function that scores each table."""


def one_gpu_scores(names: Iterable[str] = TABLES) -> list[OneGpuTable]:
    return [TABLES[name](name) for name in names]
