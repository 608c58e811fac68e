"""Small tables: DDP on V100 and stages from one device's step, GPT-2 and AmoebaNet from one of their own rows."""

from __future__ import annotations

from dataclasses import replace

from scalewise.clusters.catalogue import cluster_of
from scalewise.clusters.cluster import Cluster
from scalewise.prediction.predict import Predictor
from scalewise.published.models import OUTLINES, outlined_profile
from scalewise.published.small import SMALL, SmallRow, load_small
from scalewise.simulation.layout import Layout
from scalewise.strategies.registry import strategy_of
from scalewise.strategies.strategy import Strategy
from scalewise.validation.cell import Cell
from scalewise.validation.stages import Stages
from scalewise.validation.table import Table, by

STARTING_ROWS = {
    "ddp on v100": ("alone", 1, 1),
    "layers of resnet-50": ("alone", 1, 1),
    "gpt-2 on titan rtx": ("mirrored", 2, 1),
    "amoebanet pipelines": ("pipeline", 2, 1),
    "pipelines on p40": ("pipeline", 1, 2),
}
"""What each table is predicted from: strategy, devices, micro-batches. Two have no row of one device."""
SPECIFIED_GBps = 15.75
ROUNDS = 6


def small_tables() -> list[Table]:
    cells: list[Cell] = []
    names: list[str] = []
    for table, starting in STARTING_ROWS.items():
        rows = [row for row in load_small() if row.table == table]
        for model in dict.fromkeys(row.model for row in rows):
            series = [row for row in rows if row.model == model]
            start = next(row for row in series if (row.strategy, row.devices, row.micro_batches) == starting)
            compute = _compute_seconds(start)
            for row in series:
                if row is not start and row.devices > 1:
                    cells.append(_cell(row, compute))
                    names.append(table)
    return [
        Table(
            "small tables",
            cells,
            "no",
            "overlap and slowdown of DDP are t4's; gpt-2 and amoebanet start from one multi-GPU row each, left out; so "
            "are MXNet's six rows, of communication alone",
            SMALL.citation,
            {"median": 10},
            by(cells, names),
        )
    ]


def _cluster(row: SmallRow) -> Cluster:
    return replace(cluster_of(row.machine), hosts=row.hosts)


def _strategy(row: SmallRow) -> Strategy:
    staged = row.strategy in ("layers", "pipeline")
    return Stages(row.micro_batches, row.stages) if staged else strategy_of(row.strategy)


def _predictor(row: SmallRow, compute: float) -> Predictor:
    batch = row.batch_per_device * (row.devices if isinstance(_strategy(row), Stages) else 1)
    model = row.model if row.model in OUTLINES else "ResNet-50"
    return Predictor(outlined_profile(model, _cluster(row).devices[0].name, {batch: compute}), _cluster(row))


def _compute_seconds(start: SmallRow) -> float:
    """Of one device: the row's own, or what makes its prediction come out."""
    if start.strategy == "alone":
        return start.seconds
    compute = start.seconds
    for _ in range(ROUNDS):
        compute *= start.seconds / _step_seconds(start, compute)
    return compute


def _step_seconds(row: SmallRow, compute: float) -> float:
    batch = row.devices * row.batch_per_device
    return _predictor(row, compute).simulate(_strategy(row), row.devices, batch, _layout(row)).step_seconds


def _layout(row: SmallRow) -> Layout:
    return Layout((row.devices // row.hosts,) * row.hosts)


def _cell(row: SmallRow, compute: float) -> Cell:
    strategy, predictor = _strategy(row), _predictor(row, compute)
    batch = row.devices * row.batch_per_device
    prediction = predictor.predict(strategy, row.devices, batch, _layout(row), samples=batch)
    staged = isinstance(strategy, Stages)
    moved = 0 if staged else 2 * predictor.profile.parameter_bytes * (row.devices - 1) / row.devices
    linear = compute / row.devices if staged else compute
    return Cell(
        label=f"{row.model} {row.strategy} on {row.devices} GPUs of {row.machine}, {row.micro_batches} micro-batches",
        measured=row.seconds,
        predicted=prediction.seconds,
        low=prediction.low,
        high=prediction.high,
        alone=compute if staged else compute * row.devices,
        baselines={"linear scaling": linear, "bytes / specification": linear + moved / (SPECIFIED_GBps * 1e9)},
    )
